#include "device/stage.h"

#include <string.h>

#include "base/mem.h"
#include "base/pool.h"

enum { BLOCKS = 4, BLOCK_BYTES = 32 << 20, GRAIN = 1 << 20, THREADS_MAX = 8, SMALL_BYTES = 1 << 20 };

struct block {
    void *bytes;
    struct pl_device_event sent;
    bool pending;
};
struct pl_stage {
    struct pl_device *device;
    struct pl_pool *pool;
    struct block blocks[BLOCKS];
    size_t next;
};
struct share {
    char *to;
    const char *from;
    size_t bytes;
};

bool pl_stage_helps(const struct pl_device *d, uint64_t bytes) { return bytes >= SMALL_BYTES && !pl_device_info(d)->is_cpu; }

static enum pl_status make_blocks(struct pl_stage *s, struct pl_err *err) {
    int threads = PL_MIN(pl_cpu_count(), (int)THREADS_MAX);
    PL_TRY(pl_pool_create(threads, &s->pool, err));
    for (size_t i = 0; i < BLOCKS; i++) {
        PL_TRY(pl_device_host_alloc(s->device, BLOCK_BYTES, &s->blocks[i].bytes, err));
        PL_TRY(pl_device_event_create(s->device, &s->blocks[i].sent, err));
    }
    return PL_OK;
}

enum pl_status pl_stage_create(struct pl_device *d, struct pl_stage **out, struct pl_err *err) {
    struct pl_stage *s = pl_calloc(1, sizeof *s);
    if (s == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory to load weights");
    s->device = d;
    enum pl_status st = make_blocks(s, err);
    if (st != PL_OK) {
        pl_stage_destroy(s);
        return st;
    }
    *out = s;
    return PL_OK;
}

void pl_stage_destroy(struct pl_stage *s) {
    if (s == NULL) return;
    bool pending = false;
    for (size_t i = 0; i < BLOCKS; i++) pending |= s->blocks[i].pending;
    if (pending) pl_device_settle(s->device);
    for (size_t i = 0; i < BLOCKS; i++) {
        pl_device_event_destroy(s->device, &s->blocks[i].sent);
        pl_device_host_free(s->device, s->blocks[i].bytes);
    }
    pl_pool_destroy(s->pool);
    pl_free(s);
}

static void copy_share(void *arg, int index, int count) {
    const struct share *c = arg;
    size_t begin, end;
    pl_pool_share(c->bytes, GRAIN, index, count, &begin, &end);
    memcpy(c->to + begin, c->from + begin, end - begin);
}

enum pl_status pl_stage_upload(struct pl_stage *s, struct pl_device_stream stream, const struct pl_device_buffer *to,
                               uint64_t offset, const void *from, uint64_t bytes, struct pl_err *err) {
    for (uint64_t done = 0; done < bytes;) {
        struct block *b = &s->blocks[s->next];
        struct share c = {b->bytes, (const char *)from + done, PL_MIN(bytes - done, (uint64_t)BLOCK_BYTES)};
        if (b->pending) PL_TRY(pl_device_event_wait(s->device, &b->sent, err)); /* the block is ours again */
        pl_pool_run(s->pool, copy_share, &c);
        b->pending = true;
        PL_TRY(pl_device_upload(s->device, stream, to, offset + done, b->bytes, c.bytes, err));
        PL_TRY(pl_device_event_record(s->device, &b->sent, stream, err));
        s->next = (s->next + 1) % BLOCKS;
        done += c.bytes;
    }
    return PL_OK;
}
