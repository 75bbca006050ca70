/* cuBLASLt through its own library; the constants and the layout of its result record are those of its public ABI. */
#include "device/gemm.h"

#include "base/mem.h"
#include "device/driver.h"

enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, OP_T = 1, DESC_TRANSA = 3, DESC_EPILOGUE = 7, DESC_BIAS = 8 };
enum { EPILOGUE_BIAS = 4, PREF_WORKSPACE = 1, WORKSPACE = 64 << 20, PLANS_MAX = 64 };

struct heuristic { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct heuristic) == 96, "as in the library's ABI");

static struct {
    void *library;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_destroy)(void *desc);
    int (*desc_set)(void *desc, int attr, const void *value, size_t size);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*pref_create)(void **pref);
    int (*pref_destroy)(void *pref);
    int (*pref_set)(void *pref, int attr, const void *value, size_t size);
    int (*choose)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int wanted,
                  struct heuristic *out, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb,
                  const void *beta, const void *c, void *lc, void *d, void *ld, const void *algo, void *workspace,
                  size_t workspace_bytes, void *stream);
    size_t (*version)(void);
} lt;

struct plan {
    uint32_t m, n, k, ldy, add, half, bias;
    void *desc, *a, *b, *d;
    struct heuristic choice;
    uint64_t used;
};
struct pl_gemm {
    struct pl_device *device;
    void *handle;
    struct pl_device_buffer workspace;
    struct plan plans[PLANS_MAX];
    uint64_t clock;
};

static enum pl_status open_library(struct pl_err *err) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so",
                                        NULL};
    static const char *const folders[] = {"/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", NULL};
    static const struct pl_library lib = {
        .what = "NVIDIA's matrix library cuBLASLt",
        .help = "the driver does not bring it: install the CUDA toolkit (pip: nvidia-cublas), or set PLUMB_CUDA_PATH",
        .names = names,
        .folders = folders,
        .env = "PLUMB_CUDA_PATH",
        .off = "PLUMB_CUBLASLT",
        .pip = "nvidia/*",
    };
    static const struct pl_library_symbol symbols[] = {
        {"cublasLtCreate", (void **)(void *)&lt.create, false},
        {"cublasLtDestroy", (void **)(void *)&lt.destroy, false},
        {"cublasLtMatmulDescCreate", (void **)(void *)&lt.desc_create, false},
        {"cublasLtMatmulDescDestroy", (void **)(void *)&lt.desc_destroy, false},
        {"cublasLtMatmulDescSetAttribute", (void **)(void *)&lt.desc_set, false},
        {"cublasLtMatrixLayoutCreate", (void **)(void *)&lt.layout_create, false},
        {"cublasLtMatrixLayoutDestroy", (void **)(void *)&lt.layout_destroy, false},
        {"cublasLtMatmulPreferenceCreate", (void **)(void *)&lt.pref_create, false},
        {"cublasLtMatmulPreferenceDestroy", (void **)(void *)&lt.pref_destroy, false},
        {"cublasLtMatmulPreferenceSetAttribute", (void **)(void *)&lt.pref_set, false},
        {"cublasLtMatmulAlgoGetHeuristic", (void **)(void *)&lt.choose, false},
        {"cublasLtMatmul", (void **)(void *)&lt.matmul, false},
        {"cublasLtGetVersion", (void **)(void *)&lt.version, false},
    };
    if (lt.library != NULL) return PL_OK;
    void *handle = NULL;
    PL_TRY(pl_library_open(&lib, symbols, PL_COUNT_OF(symbols), &handle, err));
    if (lt.version() < 110400) {
        PL_FAIL(err, PL_UNSUPPORTED, "cuBLASLt %zu is too old: 11.4 or newer is needed", lt.version());
    }
    lt.library = handle;
    return PL_OK;
}

enum pl_status pl_gemm_open(struct pl_device *d, struct pl_gemm **out, struct pl_err *err) {
    if (pl_device_info(d)->kind != PL_DEVICE_CUDA) {
        PL_FAIL(err, PL_UNSUPPORTED, "no dense products of a library on %s", pl_device_kind_name(pl_device_info(d)->kind));
    }
    PL_TRY(open_library(err));
    struct pl_gemm *g = pl_calloc(1, sizeof *g);
    if (g == NULL) PL_FAIL(err, PL_NO_MEMORY, "no memory for dense products");
    g->device = d;
    enum pl_status st = pl_device_alloc(d, WORKSPACE, &g->workspace, err);
    if (st == PL_OK && pl_cuda_keep_context(pl_device_info(d)->index) != 0) {
        st = pl_err_set(err, __FILE__, __LINE__, PL_DEVICE, "the device's context could not be kept for cuBLASLt");
    }
    int code = st == PL_OK ? lt.create(&g->handle) : 0;
    if (code != 0) st = pl_err_set(err, __FILE__, __LINE__, PL_DEVICE, "cuBLASLt does not start: status %d", code);
    if (st != PL_OK) {
        pl_gemm_close(g);
        return st;
    }
    *out = g;
    return PL_OK;
}

static void plan_deinit(struct plan *p) {
    if (p->desc != NULL) lt.desc_destroy(p->desc);
    if (p->a != NULL) lt.layout_destroy(p->a);
    if (p->b != NULL) lt.layout_destroy(p->b);
    if (p->d != NULL) lt.layout_destroy(p->d);
    *p = (struct plan){0};
}

void pl_gemm_close(struct pl_gemm *g) {
    if (g == NULL) return;
    for (int i = 0; i < PLANS_MAX; i++) plan_deinit(&g->plans[i]);
    if (g->handle != NULL) lt.destroy(g->handle);
    pl_device_free(g->device, &g->workspace);
    pl_free(g);
}

/* The library counts columns first: its D is m x n with W transposed, so our rows are its columns. */
static int plan_init(struct pl_gemm *g, struct plan *p) {
    int op = OP_T, found = 0;
    uint32_t epilogue = EPILOGUE_BIAS;
    uint64_t workspace = WORKSPACE;
    void *pref = NULL;
    int code = lt.desc_create(&p->desc, COMPUTE_32F, R_32F);
    if (code == 0) code = lt.desc_set(p->desc, DESC_TRANSA, &op, sizeof op);
    if (code == 0 && p->bias) code = lt.desc_set(p->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (code == 0) code = lt.layout_create(&p->a, R_16BF, p->k, p->m, p->k);
    if (code == 0) code = lt.layout_create(&p->b, R_16BF, p->k, p->n, p->k);
    if (code == 0) code = lt.layout_create(&p->d, p->half ? R_16BF : R_32F, p->m, p->n, p->ldy);
    if (code == 0) code = lt.pref_create(&pref);
    if (code == 0) code = lt.pref_set(pref, PREF_WORKSPACE, &workspace, sizeof workspace);
    if (code == 0) code = lt.choose(g->handle, p->desc, p->a, p->b, p->d, p->d, pref, 1, &p->choice, &found);
    if (code == 0 && found == 0) code = 15; /* CUBLAS_STATUS_NOT_SUPPORTED */
    if (pref != NULL) lt.pref_destroy(pref);
    return code;
}

static bool serves(const struct plan *p, const struct pl_gemm_call *c) {
    return p->desc != NULL && p->m == c->m && p->n == c->n && p->k == c->k && p->ldy == c->ldy && p->add == c->add &&
           p->half == c->half && p->bias == (c->bias != NULL);
}

static enum pl_status plan_of(struct pl_gemm *g, const struct pl_gemm_call *c, struct plan **out, struct pl_err *err) {
    struct plan *p = &g->plans[0];
    for (int i = 0; i < PLANS_MAX; i++) {
        if (serves(&g->plans[i], c)) {
            *out = &g->plans[i];
            return PL_OK;
        }
        if (g->plans[i].used < p->used) p = &g->plans[i];
    }
    plan_deinit(p);
    p->m = c->m, p->n = c->n, p->k = c->k, p->ldy = c->ldy, p->add = c->add, p->half = c->half, p->bias = c->bias != NULL;
    int code = plan_init(g, p);
    if (code != 0) {
        plan_deinit(p);
        PL_FAIL(err, PL_DEVICE, "cuBLASLt has no product of %u x %u x %u: status %d", c->m, c->n, c->k, code);
    }
    *out = p;
    return PL_OK;
}

enum pl_status pl_gemm_run(struct pl_gemm *g, struct pl_device_stream s, const struct pl_gemm_call *c, struct pl_err *err) {
    struct plan *p = NULL;
    if (pl_device_poisoned(g->device)) PL_FAIL(err, PL_DEVICE, "the device failed earlier and was not drained");
    PL_TRY(plan_of(g, c, &p, err));
    p->used = ++g->clock;
    const float alpha = 1.0f, beta = c->add ? 1.0f : 0.0f;
    int code = 0;
    if (c->bias != NULL) code = lt.desc_set(p->desc, DESC_BIAS, &c->bias, sizeof c->bias);
    if (code == 0) {
        code = lt.matmul(g->handle, p->desc, &alpha, c->w, p->a, c->x, p->b, &beta, c->y, p->d, c->y, p->d, p->choice.algo,
                         pl_device_raw_buffer(&g->workspace), g->workspace.bytes, pl_device_raw_stream(s));
    }
    if (code != 0) PL_FAIL(err, PL_DEVICE, "cuBLASLt: product of %u x %u x %u: status %d", c->m, c->n, c->k, code);
    return PL_OK;
}
