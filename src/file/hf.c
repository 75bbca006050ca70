#include "file/reader.h"
enum pl_status pl_hf_open(const char *dir, const char *weights, struct pl_file **out, struct pl_err *err) {
    (void)weights;
    (void)out;
    PL_FAIL(err, PL_UNSUPPORTED, "%s: Hugging Face directories are not read yet", PL_SHOWN_C(dir));
}
enum pl_status pl_safetensors_open_memory(const void *data, size_t len, struct pl_file **out, struct pl_err *err) {
    (void)data;
    (void)len;
    (void)out;
    PL_FAIL(err, PL_UNSUPPORTED, "safetensors are not read yet");
}
