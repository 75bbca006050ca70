/* read_bandwidth [threads] - GB/s that 1..threads threads read, from buffers of several sizes. */
#include <stdlib.h>

#include "bench/bandwidth.h"

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : pl_cpu_count();
    const size_t mib[] = {1, 8, 64, 256, 1024};
    for (int t = 1; t <= threads; t++) {
        struct pl_pool *pool;
        struct pl_err err = {0};
        if (pl_pool_create(t, &pool, &err) != PL_OK) return fprintf(stderr, "%s\n", err.text), 1;
        for (size_t i = 0; i < sizeof mib / sizeof *mib; i++)
            printf("threads %d  %5zu MiB  %6.1f GB/s\n", t, mib[i], read_bandwidth(pool, mib[i] << 20, 1, 7) * 1e-9);
        pl_pool_destroy(pool);
    }
    return 0;
}
