/* Any bytes as the JSON of a model directory: as config.json beside packed MLX tensors, as tokenizer_config.json,
 * and as the model's configuration. */
#include "file/reader.h"
#include "fuzz/file_walk.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One packed layer "l": 2 rows of 8 words (64 elements of 4 bits), one group of 64. */
static const char header[] = "{\"l.weight\":{\"dtype\":\"U32\",\"shape\":[2,8],\"data_offsets\":[0,64]},"
                             "\"l.scales\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[64,68]},"
                             "\"l.biases\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[68,72]}}";

static size_t build_weights(uint8_t *out) {
    uint64_t len = sizeof header - 1;
    memcpy(out, &len, 8);
    memcpy(out + 8, header, len);
    memset(out + 8 + len, 0x55, 72);
    return 8 + len + 72;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pl_file *f = NULL;
    struct pl_err err = {0};
    json_t *root = NULL;
    uint8_t weights[512];
    size_t weights_len = build_weights(weights);
    if (pl_json_parse("config.json", (const char *)data, size, &root, &err) != PL_OK) {
        PL_ASSERT(root == NULL && err.text[0] != '\0');
        return 0;
    }
    if (pl_safetensors_open_memory(weights, weights_len, &f, &err) != PL_OK) {
        json_decref(root);
        return 0;
    }
    f->json[PL_JSON_CONFIG] = root;
    f->json[PL_JSON_TOKENIZER_CONFIG] = json_incref(root);
    if (pl_mlx_check_config(f, &err) == PL_OK && pl_mlx_join(f, &err) == PL_OK && pl_file_check_readable(f, &err) == PL_OK) {
        PL_ASSERT(pl_file_tensor_count(f) == 1 && pl_file_tensor_at(f, 0)->dtype == PL_MLX);
        pl_walk_file(f, weights, weights_len);
    }
    if (pl_templates_from_json(f, &err) == PL_OK) PL_ASSERT(pl_file_finish(f, &err) == PL_OK);
    struct pl_model_config config;
    if (pl_model_config_read(f, &config, &err) == PL_OK) PL_ASSERT(config.layers > 0 && config.heads % config.kv_heads == 0);
    pl_file_close(f);
    return 0;
}
