/* watch.c - connections seen from outside MHD: clients that leave while their request is parked, headers and bodies that
 * never end. One thread waits for the kernel to say that a peer has gone, and looks at the clock once a second. */
#include "serve/internal.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

/* One client connection, from accept to close; guarded by conns_lock. MHD tells of its end before it closes the socket. */
struct conn {
    struct conn *next, **prev_next;
    int fd;
    uint64_t since_ns;                              /* of the state below */
    enum { CONN_HEADER, CONN_BODY, CONN_WORK } now; /* what it waits for; WORK: for us */
};

static struct conn *conn_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == NULL ? NULL : info->socket_context;
}

void watch_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code) {
    struct pl_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct conn *n = info == NULL ? NULL : pl_calloc(1, sizeof *n);
        if (n == NULL) return; /* it is served all the same, only not watched */
        *n = (struct conn){.fd = info->connect_fd, .since_ns = pl_clock_ns()};
        pthread_mutex_lock(&s->conns_lock);
        n->next = s->conns;
        n->prev_next = &s->conns;
        if (n->next != NULL) n->next->prev_next = &n->next;
        s->conns = n;
        pthread_mutex_unlock(&s->conns_lock);
        *context = n;
        return;
    }
    struct conn *n = *context;
    if (n == NULL) return;
    pthread_mutex_lock(&s->conns_lock);
    *n->prev_next = n->next;
    if (n->next != NULL) n->next->prev_next = n->prev_next;
    pthread_mutex_unlock(&s->conns_lock);
    pl_free(n);
    *context = NULL;
}

static void set_state(struct exchange *x, int now) {
    struct conn *n = conn_of(x->connection);
    if (n == NULL) return;
    pthread_mutex_lock(&x->server->conns_lock);
    n->now = now;
    n->since_ns = pl_clock_ns();
    pthread_mutex_unlock(&x->server->conns_lock);
}
void watch_body(struct exchange *x) { set_state(x, CONN_BODY); }
void watch_work(struct exchange *x) { set_state(x, CONN_WORK); }
void watch_idle(struct exchange *x) { set_state(x, CONN_HEADER); }

/* MHD closes silent connections; a peer that sends a byte now and then is never silent. */
static void end_slow(struct pl_server *s) {
    const uint64_t second = 1000000000u, now = pl_clock_ns();
    const uint64_t body = s->opt.body_timeout_s * second, header = body + s->opt.idle_timeout_s * second;
    pthread_mutex_lock(&s->conns_lock);
    for (struct conn *n = s->conns; n != NULL; n = n->next)
        if ((n->now == CONN_BODY && now - n->since_ns > body) || (n->now == CONN_HEADER && now - n->since_ns > header))
            shutdown(n->fd, SHUT_RDWR); /* MHD finds it ended */
    pthread_mutex_unlock(&s->conns_lock);
}

/* ---------- clients that leave ---------- */

void watch_job(struct job *j) {
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.fd = j->fd}};
    if (j->fd >= 0) (void)epoll_ctl(j->server->watch_fd, EPOLL_CTL_ADD, j->fd, &e);
}
void unwatch_job(struct job *j) {
    if (j->fd >= 0) (void)epoll_ctl(j->server->watch_fd, EPOLL_CTL_DEL, j->fd, NULL);
}

static void client_left(struct pl_server *s, int fd) {
    pthread_mutex_lock(&s->jobs_lock);
    for (struct job *j = s->jobs; j != NULL; j = j->next) {
        pthread_mutex_lock(&j->lock);
        if (j->connection != NULL && j->fd == fd) {
            if (j->open > 0) j->left = true;
            job_cancel(j);
        }
        pthread_mutex_unlock(&j->lock);
    }
    pthread_mutex_unlock(&s->jobs_lock);
}

static void *watch_main(void *arg) {
    struct pl_server *s = arg;
    struct epoll_event events[64];
    uint64_t looked = pl_clock_ns();
    while (!s->watch_stop) {
        int n = epoll_wait(s->watch_fd, events, PL_COUNT_OF(events), 1000);
        for (int i = 0; i < n; i++)
            if (events[i].data.fd != s->watch_wake) client_left(s, events[i].data.fd);
        if (pl_clock_ns() - looked < 900000000u) continue;
        looked = pl_clock_ns();
        end_slow(s);
    }
    return NULL;
}

/* ---------- life ---------- */

enum pl_status watch_start(struct pl_server *s, struct pl_err *err) {
    struct epoll_event e = {.events = EPOLLIN, .data = {.fd = s->watch_wake}};
    if (s->watch_fd < 0 || s->watch_wake < 0 || epoll_ctl(s->watch_fd, EPOLL_CTL_ADD, s->watch_wake, &e) != 0 ||
        pthread_create(&s->watcher, NULL, watch_main, s) != 0)
        PL_FAIL(err, PL_IO, "the thread that watches connections could not be started");
    s->watch_started = true;
    return PL_OK;
}

void watch_init(struct pl_server *s) {
    pthread_mutex_init(&s->conns_lock, NULL);
    s->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    s->watch_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void watch_stop(struct pl_server *s) {
    if (!s->watch_started) return;
    s->watch_stop = true;
    (void)eventfd_write(s->watch_wake, 1);
    pthread_join(s->watcher, NULL);
    s->watch_started = false;
}

void watch_deinit(struct pl_server *s) {
    if (s->watch_fd >= 0) close(s->watch_fd);
    if (s->watch_wake >= 0) close(s->watch_wake);
    pthread_mutex_destroy(&s->conns_lock);
}
