/* fake_cublaslt - the matrix library beside the fake driver: it plans and multiplies nothing. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default"))) int
#define GIVES(name) \
    API name(void **out) { return (*out = malloc(16)) == NULL; }
#define TAKES(name) \
    API name(void *h) { return free(h), 0; }
#define DOES(name) \
    API name(void) { return 0; }

GIVES(cublasLtCreate)
TAKES(cublasLtDestroy)
GIVES(cublasLtMatmulDescCreate)
TAKES(cublasLtMatmulDescDestroy)
DOES(cublasLtMatmulDescSetAttribute)
GIVES(cublasLtMatrixLayoutCreate)
TAKES(cublasLtMatrixLayoutDestroy)
GIVES(cublasLtMatmulPreferenceCreate)
TAKES(cublasLtMatmulPreferenceDestroy)
DOES(cublasLtMatmulPreferenceSetAttribute)
API cublasLtMatmulAlgoGetHeuristic(void *h, void *desc, void *a, void *b, void *c, void *d, void *pref, int wanted,
                                   void *out, int *found) {
    (void)h, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)pref, (void)wanted, (void)out;
    return *found = 1, 0;
}
DOES(cublasLtMatmul)
__attribute__((visibility("default"))) size_t cublasLtGetVersion(void) { return 130000; }
