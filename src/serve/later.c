/* later.c - large requests are read by threads of their own: to parse and tokenize megabytes takes seconds, and the thread
 * that does it can serve none of its connections meanwhile.
 *
 * The connection is parked, its handler runs here, and what it answers with is kept (answer_queue); the connection's own
 * thread takes it from there (later_finish). A job that was begun is parked again until it has something to say. */
#include "base/json.h"
#include "serve/internal.h"

enum { LARGE_BYTES = 32 << 10 };

static struct exchange *next_of(struct pl_server *s) {
    pthread_mutex_lock(&s->later_lock);
    while (s->later == NULL && !s->later_stop) pthread_cond_wait(&s->later_more, &s->later_lock);
    struct exchange *x = s->later;
    if (x != NULL) s->later = x->next;
    pthread_mutex_unlock(&s->later_lock);
    return x;
}

static void *later_main(void *arg) {
    struct pl_server *s = arg;
    for (struct exchange *x; (x = next_of(s)) != NULL;) {
        pl_json_watch();
        enum MHD_Result r = s->draining ? answer_error(x, 503, NULL, NULL, "the server is shutting down") : dispatch(x);
        x->broken = r == MHD_NO;
        x->reading = READING_DONE;
        MHD_resume_connection(x->connection); /* from here on it is its own thread's */
    }
    return NULL;
}

bool later_take(struct exchange *x) {
    struct pl_server *s = x->server;
    if (x->reading != READING_HERE || x->body.len < LARGE_BYTES) return false;
    pthread_mutex_lock(&s->later_lock);
    const bool taken = !s->later_stop; /* afterwards nobody would wake it */
    if (taken) {
        struct exchange **last = &s->later;
        while (*last != NULL) last = &(*last)->next;
        *last = x;
        x->next = NULL;
        x->reading = READING_LATER;
        MHD_suspend_connection(x->connection);
        pthread_cond_signal(&s->later_more);
    }
    pthread_mutex_unlock(&s->later_lock);
    return taken;
}

enum MHD_Result later_finish(struct exchange *x) {
    struct MHD_Response *r = x->late;
    x->reading = READING_HERE;
    x->late = NULL;
    if (r != NULL) return answer_queue(x, x->http_status, r);
    return x->broken || x->job == NULL ? MHD_NO : job_wait(x->job, x);
}

enum pl_status later_start(struct pl_server *s, struct pl_err *err) {
    for (; s->later_count < PL_COUNT_OF(s->later_threads); s->later_count++) {
        if (pthread_create(&s->later_threads[s->later_count], NULL, later_main, s) != 0)
            PL_FAIL(err, PL_IO, "a thread that reads large requests could not be started");
    }
    return PL_OK;
}

void later_init(struct pl_server *s) {
    pthread_mutex_init(&s->later_lock, NULL);
    pthread_cond_init(&s->later_more, NULL);
}

/* What still waits is refused: every parked connection must go on before the daemon ends. */
void later_stop(struct pl_server *s) {
    pthread_mutex_lock(&s->later_lock);
    s->later_stop = true;
    pthread_cond_broadcast(&s->later_more);
    pthread_mutex_unlock(&s->later_lock);
    while (s->later_count > 0) pthread_join(s->later_threads[--s->later_count], NULL);
}

void later_deinit(struct pl_server *s) {
    pthread_mutex_destroy(&s->later_lock);
    pthread_cond_destroy(&s->later_more);
}
