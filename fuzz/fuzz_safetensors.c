/* Any bytes as a safetensors file: an error with a message, or a file that keeps its promises. */
#include "fuzz/file_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pl_file *f = NULL;
    struct pl_err err = {0};
    if (pl_safetensors_open_memory(data, size, &f, &err) != PL_OK) {
        PL_ASSERT(f == NULL && err.text[0] != '\0' && err.status != PL_OK);
        return 0;
    }
    pl_walk_file(f, data, size);
    pl_file_close(f);
    return 0;
}
