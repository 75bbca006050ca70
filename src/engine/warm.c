/* warm - what the first tokens of a process cost once is paid before anybody waits for them. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

/* Large weights are packed for the CPU when they are used for the second time (src/cpu): a server's second token would wait
 * for that. On devices everything is made ready while loading. */
enum pl_status pl_engine_warm_up(struct plumb_engine *e, struct pl_err *err) {
    struct plumb_session *s = NULL;
    const uint32_t id = 0;
    uint64_t start = pl_clock_ns();
    if (pl_ops_backend(e->ops) != PL_BACKEND_CPU) return PL_OK;
    PL_TRY(pl_session_create(e, &s, err));
    enum pl_status st = PL_OK;
    for (int i = 0; i < 2 && st == PL_OK; i++) {
        st = pl_session_truncate(s, 0, err);
        if (st == PL_OK) st = pl_session_append(s, &id, 1, NULL, NULL, err);
    }
    plumb_session_destroy(s);
    pl_ops_witness_reset(e->ops); /* nobody asked for these */
    if (st == PL_OK)
        pl_log("warm-up: two tokens in %.2f s, so that no request waits while weights are packed",
               (double)(pl_clock_ns() - start) * 1e-9);
    return st;
}
