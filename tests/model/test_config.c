/* Configurations: the field sets of published models, and everything that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/model.h"
#include "tests/model/config_dir.h"

static enum pl_status read_json(const char *json, struct pl_model_config *c, struct pl_err *err) {
    write_file("config.json", json, strlen(json));
    struct pl_file *f;
    *err = (struct pl_err){0};
    enum pl_status st = pl_file_open(dir, &f, err);
    if (st != PL_OK) return st;
    st = pl_model_config_read(f, c, err);
    pl_file_close(f);
    return st;
}

static struct pl_model_config must_read(const char *json) {
    struct pl_model_config c;
    struct pl_err err;
    if (read_json(json, &c, &err) != PL_OK) fail_msg("%s", err.text);
    return c;
}

static uint32_t windowed_layers(const struct pl_model_config *c) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < c->layers; l++) n += c->layer_windowed[l];
    return n;
}

#define ASSERT_NEAR(a, b) assert_true((a) > (b)*0.999999 && (a) < (b)*1.000001)

static void llama_3_2(void **state) {
    (void)state;
    struct pl_model_config c = must_read(
        "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":"
        "128000,"
        "\"eos_token_id\":[128001,128008,128009],\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
        "\"initializer_range\":0.02,\"intermediate_size\":8192,\"max_position_embeddings\":131072,\"mlp_bias\":false,"
        "\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":16,\"num_key_value_heads\":8,"
        "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
        "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},\"rope_theta\":500000."
        "0,"
        "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.45.0.dev0\",\"use_cache\":"
        "true,"
        "\"vocab_size\":128256}");
    assert_int_equal(c.arch, PL_ARCH_LLAMA);
    assert_int_equal(c.layers, 16);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.rope_scaling, PL_ROPE_LLAMA3);
    assert_int_equal(c.rope_context_orig, 8192);
    ASSERT_NEAR(c.rope_factor, 32);
    ASSERT_NEAR(c.rope_base, 500000);
    assert_true(c.tied_embeddings && c.rope_halves && !c.qkv_bias && !c.qk_norm && c.window == 0);
    c = must_read("{\"model_type\":\"llama\",\"rope_theta\":20000,\"rope_scaling\":{\"factor\":8,\"rope_type\":\"linear\","
                  "\"rope_theta\":500000.0}}"); /* the inner one counts */
    ASSERT_NEAR(c.rope_base, 500000);
    ASSERT_NEAR(c.rope_base_local, 500000);
    c = must_read("{\"model_type\":\"llama\",\"rope_scaling\":{},\"rope_parameters\":{\"factor\":8,\"rope_type\":\"linear\","
                  "\"rope_theta\":500000.0}}"); /* an empty one is none */
    ASSERT_NEAR(c.rope_base, 500000);
    assert_int_equal(c.rope_scaling, PL_ROPE_LINEAR);
}

static void smollm2(void **state) {
    (void)state;
    struct pl_model_config c =
        must_read("{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":1,\"eos_token_id\":2,"
                  "\"hidden_act\":\"silu\",\"hidden_size\":576,\"intermediate_size\":1536,\"is_llama_config\":true,"
                  "\"max_position_embeddings\":8192,\"mlp_bias\":false,\"model_type\":\"llama\",\"num_attention_heads\":9,"
                  "\"num_hidden_layers\":30,\"num_key_value_heads\":3,\"pad_token_id\":2,\"rms_norm_eps\":1e-05,"
                  "\"rope_interleaved\":false,\"rope_scaling\":null,\"rope_theta\":100000,\"tie_word_embeddings\":true,"
                  "\"transformers.js_config\":{\"kv_cache_dtype\":{\"q4f16\":\"float16\"}},\"vocab_size\":49152}");
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.rope_scaling, PL_ROPE_NONE);
    ASSERT_NEAR(c.attn_scale, 0.125);
}

static void llama_2_and_old_ones(void **state) {
    (void)state;
    struct pl_model_config c = must_read(
        "{\"_name_or_path\":\"meta-llama/Llama-2-7b-hf\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\","
        "\"hidden_size\":4096,\"intermediate_size\":11008,\"max_position_embeddings\":4096,\"model_type\":\"llama\","
        "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":32,\"rms_norm_eps\":1e-05,"
        "\"rope_scaling\":null,\"tie_word_embeddings\":false,\"vocab_size\":32000}");
    ASSERT_NEAR(c.rope_base, 10000);
    assert_false(c.tied_embeddings);
    /* The first generation knew neither grouped heads nor rotary settings. */
    c = must_read(
        "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":4096,"
        "\"intermediate_size\":11008,\"max_sequence_length\":2048,\"model_type\":\"llama\",\"num_attention_heads\":32,"
        "\"num_hidden_layers\":32,\"pad_token_id\":-1,\"rms_norm_eps\":1e-06,\"vocab_size\":32000}");
    assert_int_equal(c.kv_heads, 32);
    assert_int_equal(c.context_train, 2048);
    assert_false(c.tied_embeddings);
}

static void mistral(void **state) {
    (void)state;
    struct pl_model_config c = must_read(
        "{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\","
        "\"hidden_size\":4096,\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"model_type\":\"mistral\","
        "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,"
        "\"rope_theta\":10000.0,\"sliding_window\":4096,\"tie_word_embeddings\":false,\"vocab_size\":32000}");
    assert_int_equal(c.arch, PL_ARCH_MISTRAL);
    assert_int_equal(c.window, 4096);
    assert_int_equal(windowed_layers(&c), 32);
    c = must_read("{\"architectures\":[\"MistralForCausalLM\"],\"attention_dropout\":0.0,\"head_dim\":128,\"hidden_act\":"
                  "\"silu\",\"hidden_size\":5120,\"intermediate_size\":14336,\"max_position_embeddings\":131072,"
                  "\"model_type\":\"mistral\",\"num_attention_heads\":32,\"num_hidden_layers\":40,\"num_key_value_heads\":8,"
                  "\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,\"sliding_window\":null,\"vocab_size\":131072}");
    assert_int_equal(c.window, 0);
    assert_int_equal(windowed_layers(&c), 0);
    assert_int_equal(c.head_dim, 128);
}

static void qwen2_5(void **state) {
    (void)state;
    struct pl_model_config c =
        must_read("{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":151643,\"eos_token_"
                  "id\":151645,"
                  "\"hidden_act\":\"silu\",\"hidden_size\":896,\"intermediate_size\":4864,\"max_position_embeddings\":32768,"
                  "\"max_window_layers\":21,\"model_type\":\"qwen2\",\"num_attention_heads\":14,\"num_hidden_layers\":24,"
                  "\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":32768,"
                  "\"tie_word_embeddings\":true,\"use_cache\":true,\"use_sliding_window\":false,\"vocab_size\":151936}");
    assert_true(c.qkv_bias && !c.o_bias && !c.qk_norm);
    assert_int_equal(c.window, 0);
    assert_int_equal(c.rope_scaling, PL_ROPE_NONE);
    /* Long-context variants: the same with YaRN, in either spelling. */
    c = must_read("{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":896,"
                  "\"intermediate_size\":4864,\"max_position_embeddings\":131072,\"model_type\":\"qwen2\","
                  "\"num_attention_heads\":14,\"num_hidden_layers\":24,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,"
                  "\"rope_scaling\":{\"factor\":4.0,\"original_max_position_embeddings\":32768,\"type\":\"yarn\"},"
                  "\"rope_theta\":1000000.0,\"use_sliding_window\":false,\"vocab_size\":151936}");
    assert_int_equal(c.rope_scaling, PL_ROPE_YARN);
    ASSERT_NEAR(c.rope_attn_factor, 1.1386294);
    assert_int_equal(c.rope_context_orig, 32768);
}

static void qwen3(void **state) {
    (void)state;
    struct pl_model_config c = must_read(
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":"
        "151643,"
        "\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":1024,\"intermediate_size\":3072,"
        "\"max_position_embeddings\":40960,\"max_window_layers\":28,\"model_type\":\"qwen3\",\"num_attention_heads\":16,"
        "\"num_hidden_layers\":28,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,"
        "\"rope_theta\":1000000,\"sliding_window\":null,\"tie_word_embeddings\":true,\"use_sliding_window\":false,"
        "\"vocab_size\":151936}");
    assert_true(c.qk_norm && !c.qkv_bias);
    assert_int_equal(c.head_dim, 128);
    /* As transformers 5 writes it. */
    c = must_read(
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"dtype\":\"bfloat16\",\"head_dim\":128,\"hidden_act\":\"silu\","
        "\"hidden_size\":1024,\"intermediate_size\":3072,\"layer_types\":[\"full_attention\",\"full_attention\"],"
        "\"max_position_embeddings\":40960,\"max_window_layers\":28,\"model_type\":\"qwen3\","
        "\"num_attention_heads\":16,\"num_hidden_layers\":2,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,"
        "\"rope_parameters\":{\"rope_theta\":1000000,\"rope_type\":\"default\"},\"sliding_window\":null,"
        "\"use_sliding_window\":false,\"vocab_size\":151936}");
    ASSERT_NEAR(c.rope_base, 1000000);
}

static void families_of_2024_and_2025(void **state) {
    (void)state;
    struct pl_model_config c =
        must_read("{\"architectures\":[\"Phi3ForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":3072,"
                  "\"intermediate_size\":8192,\"max_position_embeddings\":4096,\"model_type\":\"phi3\","
                  "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":32,"
                  "\"original_max_position_embeddings\":4096,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"
                  "\"rope_theta\":10000.0,\"sliding_window\":2047,\"tie_word_embeddings\":false,\"vocab_size\":32064}");
    assert_int_equal(c.rope_dim, 96);
    assert_int_equal(windowed_layers(&c), 32);
    c = must_read("{\"architectures\":[\"SmolLM3ForCausalLM\"],\"hidden_size\":2048,\"intermediate_size\":11008,"
                  "\"max_position_embeddings\":65536,\"model_type\":\"smollm3\",\"num_attention_heads\":16,"
                  "\"num_hidden_layers\":36,\"num_key_value_heads\":4,\"no_rope_layer_interval\":4,"
                  "\"rope_theta\":5000000.0,\"use_sliding_window\":false,\"sliding_window\":null,\"vocab_size\":128256}");
    assert_true(c.layer_nope[3] && c.layer_nope[35] && !c.layer_nope[0] && !c.layer_nope[4] && c.tied_embeddings);
    assert_int_equal(windowed_layers(&c), 0);
    c = must_read("{\"model_type\":\"smollm3\",\"num_hidden_layers\":5,\"no_rope_layers\":[1,0.0,1.0,1,0],"
                  "\"use_sliding_window\":true,\"sliding_window\":2}"); /* of the layers that do not rotate */
    assert_true(c.window == 2 && c.layer_windowed[1] && c.layer_windowed[4] && windowed_layers(&c) == 2);
    c = must_read("{\"model_type\":\"smollm3\",\"num_hidden_layers\":2,\"use_sliding_window\":true,\"sliding_window\":2,"
                  "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}");
    assert_true(c.layer_windowed[0] && !c.layer_windowed[1]);
    c = must_read("{\"architectures\":[\"GraniteForCausalLM\"],\"attention_multiplier\":0.015625,"
                  "\"embedding_multiplier\":12.0,\"hidden_size\":2048,\"intermediate_size\":8192,\"logits_scaling\":8.0,"
                  "\"max_position_embeddings\":131072,\"model_type\":\"granite\",\"num_attention_heads\":32,"
                  "\"num_hidden_layers\":40,\"num_key_value_heads\":8,\"residual_multiplier\":0.22,"
                  "\"rope_theta\":5000000.0,\"tie_word_embeddings\":true,\"vocab_size\":49155}");
    ASSERT_NEAR(c.embed_scale, 12);
    ASSERT_NEAR(c.attn_scale, 0.015625);
    ASSERT_NEAR(c.residual_scale, 0.22);
    ASSERT_NEAR(c.logit_scale, 0.125);
    c = must_read("{\"architectures\":[\"Cohere2ForCausalLM\"],\"hidden_size\":4096,\"intermediate_size\":14336,"
                  "\"layer_norm_eps\":1e-05,\"logit_scale\":0.25,\"max_position_embeddings\":8192,"
                  "\"model_type\":\"cohere2\",\"num_attention_heads\":32,\"num_hidden_layers\":32,"
                  "\"num_key_value_heads\":8,\"rope_theta\":50000,\"sliding_window\":4096,"
                  "\"sliding_window_pattern\":4,\"vocab_size\":256000}");
    assert_true(c.layer_norm && !c.rope_halves && c.layer_nope[3] && !c.layer_nope[0] && c.tied_embeddings);
    assert_int_equal(windowed_layers(&c), 24);
    c = must_read("{\"architectures\":[\"Glm4ForCausalLM\"],\"attention_bias\":false,\"head_dim\":128,"
                  "\"hidden_size\":4096,\"intermediate_size\":13696,\"max_position_embeddings\":32768,"
                  "\"model_type\":\"glm4\",\"num_attention_heads\":32,\"num_hidden_layers\":40,"
                  "\"num_key_value_heads\":2,\"partial_rotary_factor\":0.5,\"rms_norm_eps\":1e-05,"
                  "\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"vocab_size\":151552}");
    assert_int_equal(c.rope_dim, 64);
    assert_true(!c.qkv_bias && !c.rope_halves && c.window == 0);
    c = must_read("{\"architectures\":[\"Starcoder2ForCausalLM\"],\"hidden_act\":\"gelu_pytorch_tanh\","
                  "\"hidden_size\":3072,\"intermediate_size\":12288,\"model_type\":\"starcoder2\",\"norm_epsilon\":1e-05,"
                  "\"num_attention_heads\":24,\"num_hidden_layers\":30,\"num_key_value_heads\":2,"
                  "\"rope_theta\":999999.4420358813,\"sliding_window\":4096,\"use_bias\":true,\"vocab_size\":49152}");
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.layer_norm && c.mlp_act == PL_OPS_GELU_TANH);
}

static void gemma_3(void **state) {
    (void)state;
    struct pl_model_config c = must_read(
        "{\"architectures\":[\"Gemma3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
        "\"attn_logit_softcapping\":null,\"bos_token_id\":2,\"cache_implementation\":\"hybrid\",\"eos_token_id\":[1,106],"
        "\"final_logit_softcapping\":null,\"head_dim\":256,\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":1152,"
        "\"initializer_range\":0.02,\"intermediate_size\":6912,\"max_position_embeddings\":32768,\"model_type\":"
        "\"gemma3_text\",\"num_attention_heads\":4,\"num_hidden_layers\":26,\"num_key_value_heads\":1,\"pad_token_id\":0,"
        "\"query_pre_attn_scalar\":256,\"rms_norm_eps\":1e-06,\"rope_local_base_freq\":10000,\"rope_scaling\":null,"
        "\"rope_theta\":1000000,\"sliding_window\":512,\"sliding_window_pattern\":6,\"vocab_size\":262144}");
    assert_int_equal(windowed_layers(&c), 22); /* layers 6, 12, 18 and 24 are global */
    assert_false(c.layer_windowed[5]);
    assert_int_equal(c.mlp_act, PL_OPS_GELU_TANH);
    assert_true(c.tied_embeddings && c.qk_norm);
    ASSERT_NEAR(c.norm_offset, 1);
    ASSERT_NEAR(c.embed_scale, 33.941125);
    ASSERT_NEAR(c.rope_base_local, 10000);
    /* The 4B model's text configuration leaves out what equals the defaults. */
    c = must_read(
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"boi_token_index\":255999,\"model_type\":\"gemma3\","
        "\"text_config\":{\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\","
        "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
        "\"vision_config\":{\"hidden_size\":1152,\"model_type\":\"siglip_vision_model\"}}");
    assert_int_equal(c.heads, 8);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.vocab, 262208);
    assert_int_equal(c.window, 1024);
    assert_int_equal(c.rope_scaling, PL_ROPE_LINEAR);
    ASSERT_NEAR(c.rope_base, 1000000);
    /* As transformers 5 writes it. */
    c = must_read(
        "{\"architectures\":[\"Gemma3ForCausalLM\"],\"head_dim\":32,\"hidden_size\":64,\"intermediate_size\":64,"
        "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"model_type\":\"gemma3_text\","
        "\"num_attention_heads\":2,\"num_hidden_layers\":2,\"num_key_value_heads\":1,\"rope_parameters\":"
        "{\"full_attention\":{\"factor\":8.0,\"rope_theta\":1000000,\"rope_type\":\"linear\"},\"sliding_attention\":"
        "{\"rope_theta\":20000,\"rope_type\":\"default\"}},\"sliding_window\":512,\"vocab_size\":96}");
    ASSERT_NEAR(c.rope_base_local, 20000);
    ASSERT_NEAR(c.rope_factor, 8);
    assert_true(c.layer_windowed[0] && !c.layer_windowed[1]);
}

static void deepseek(void **state) {
    (void)state;
    struct pl_model_config c =
        must_read("{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"attention_bias\":false,\"aux_loss_alpha\":0.001,"
                  "\"first_k_dense_replace\":1,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":10944,"
                  "\"kv_lora_rank\":512,\"max_position_embeddings\":163840,\"model_type\":\"deepseek_v2\","
                  "\"moe_intermediate_size\":1408,\"moe_layer_freq\":1,\"n_group\":1,\"n_routed_experts\":64,"
                  "\"n_shared_experts\":2,\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_experts_per_tok\":6,"
                  "\"num_hidden_layers\":27,\"num_key_value_heads\":16,\"q_lora_rank\":null,\"qk_nope_head_dim\":128,"
                  "\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,"
                  "\"factor\":40,\"mscale\":0.707,\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096,"
                  "\"type\":\"yarn\"},\"rope_theta\":10000,\"routed_scaling_factor\":1.0,\"scoring_func\":\"softmax\","
                  "\"topk_group\":1,\"topk_method\":\"greedy\",\"v_head_dim\":128,\"vocab_size\":102400}");
    assert_int_equal(c.head_dim, 576);
    assert_int_equal(c.kv_heads, 1);
    assert_int_equal(c.latent, 512);
    assert_int_equal(c.shared_width, 2816);
    assert_true(c.query_rank == 0 && !c.layer_moe[0] && c.layer_moe[1] && !c.experts_sigmoid && c.expert_groups == 0);
    ASSERT_NEAR(c.attn_scale, 0.1147215);
    ASSERT_NEAR(c.rope_attn_factor, 1);
    c = must_read("{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\",\"rope_scaling\":{"
                  "\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
                  "\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"num_nextn_predict_layers\":1,"
                  "\"max_position_embeddings\":163840}"); /* what is left out equals the defaults */
    assert_true(c.layers == 61 && c.heads == 128 && c.query_rank == 1536 && c.experts == 256 && c.experts_used == 8);
    assert_true(c.experts_sigmoid && c.experts_bias && c.experts_renormalise && !c.rope_halves && !c.layer_moe[2]);
    assert_true(c.expert_groups == 8 && c.groups_used == 4 && c.expert_group_top == 2 && c.layer_moe[3]);
    ASSERT_NEAR(c.experts_scale, 2.5);
    ASSERT_NEAR(c.attn_scale, 0.1352337);
}

static void state_space(void **state) {
    (void)state;
    struct pl_model_config c = must_read(
        "{\"architectures\":[\"MambaForCausalLM\"],\"model_type\":\"mamba\",\"bos_token_id\":0,\"conv_kernel\":4,"
        "\"d_inner\":1536,\"d_model\":768,\"expand\":2,\"fused_add_norm\":true,\"hidden_act\":\"silu\",\"hidden_size\":768,"
        "\"intermediate_size\":1536,\"layer_norm_epsilon\":1e-05,\"n_layer\":24,\"num_hidden_layers\":24,"
        "\"residual_in_fp32\":true,\"rms_norm\":true,\"ssm_cfg\":{},\"state_size\":16,\"time_step_rank\":48,"
        "\"use_bias\":false,\"use_conv_bias\":true,\"vocab_size\":50280}");
    assert_true(c.state_layers == 24 && c.kv_layers == 0 && c.heads == 0 && c.mlp_width == 0 && c.tied_embeddings);
    assert_true(c.ssm.inner == 1536 && c.ssm.heads == 1536 && c.ssm.head_dim == 1 && c.ssm.dt_rank == 48 && c.ssm.conv_bias);
    c = must_read(
        "{\"architectures\":[\"Mamba2ForCausalLM\"],\"model_type\":\"mamba2\",\"hidden_size\":2560,\"num_heads\":80,"
        "\"num_hidden_layers\":64,\"n_groups\":1,\"norm_before_gate\":true,\"state_size\":128,\"time_step_limit\":[0.0,"
        "{\"__float__\":\"Infinity\"}],\"vocab_size\":50288,\"chunk_size\":256}");
    assert_true(c.ssm.inner == 5120 && c.ssm.head_dim == 64 && c.ssm.groups == 1 && c.ssm.norm && !c.ssm.norm_first);
    assert_true(c.ssm.dt_min >= 0 && c.ssm.dt_min <= 0 && c.ssm.dt_max > 1e38f && c.context_train == 1u << 20);
    c = must_read(
        "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"model_type\":\"granitemoehybrid\",\"attention_multiplier\":"
        "0.0078125,\"embedding_multiplier\":12,\"hidden_size\":1536,\"intermediate_size\":512,\"layer_types\":[\"mamba\","
        "\"mamba\",\"attention\",\"mamba\"],\"logits_scaling\":6,\"mamba_chunk_size\":256,\"mamba_conv_bias\":true,"
        "\"mamba_d_conv\":4,\"mamba_d_head\":64,\"mamba_d_state\":128,\"mamba_expand\":2,\"mamba_n_groups\":1,"
        "\"mamba_n_heads\":48,\"mamba_proj_bias\":false,\"max_position_embeddings\":131072,\"num_attention_heads\":12,"
        "\"num_experts_per_tok\":6,\"num_hidden_layers\":4,\"num_key_value_heads\":4,\"num_local_experts\":64,"
        "\"position_embedding_type\":\"nope\",\"residual_multiplier\":0.22,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"
        "\"rope_theta\":10000,\"shared_intermediate_size\":1024,\"tie_word_embeddings\":true,\"vocab_size\":100352}");
    assert_true(c.state_layers == 3 && c.kv_layers == 1 && c.layer_kv[2] == 0 && c.layer_state[3] == 2 && c.layer_nope[2]);
    assert_true(c.experts == 64 && c.expert_width == 512 && c.shared_width == 1024 && c.experts_renormalise &&
                c.layer_moe[0]);
    ASSERT_NEAR(c.experts_scale, 0.22);
    c = must_read(
        "{\"architectures\":[\"FalconH1ForCausalLM\"],\"model_type\":\"falcon_h1\",\"attention_in_multiplier\":0.5,"
        "\"attention_out_multiplier\":0.25,\"head_dim\":64,\"hidden_size\":1024,\"intermediate_size\":2048,"
        "\"key_multiplier\":0.375,\"lm_head_multiplier\":0.0195,\"mamba_d_ssm\":1536,\"mamba_d_state\":128,"
        "\"mamba_n_groups\":1,\"mamba_n_heads\":24,\"mamba_d_head\":64,\"mamba_norm_before_gate\":false,"
        "\"mamba_rms_norm\":false,\"mlp_multipliers\":[0.88,0.3],\"num_attention_heads\":8,\"num_hidden_layers\":36,"
        "\"num_key_value_heads\":2,\"rope_theta\":100000000000.0,\"ssm_in_multiplier\":2,\"ssm_multipliers\":[0.5,0.25,"
        "0.125,0.5,0.3],\"ssm_out_multiplier\":0.2,\"vocab_size\":32784}");
    assert_true(c.state_layers == 36 && c.kv_layers == 36 && !c.ssm.norm && c.ssm.inner == 1536);
    ASSERT_NEAR(c.attn_scale, 0.125 * 0.25 * 0.375);
    ASSERT_NEAR(c.attn_out_scale, 0.125);
    ASSERT_NEAR(c.ssm.scale[0], 1);
    c = must_read(
        "{\"architectures\":[\"NemotronHForCausalLM\"],\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"M-M*-\","
        "\"num_hidden_layers\":5,\"attention_head_dim\":128,\"layer_norm_epsilon\":1e-5,\"mlp_hidden_act\":\"relu2\"}");
    assert_true(c.state_layers == 2 && c.kv_layers == 1 && c.layer_no_attention[1] && !c.layer_ssm[1] &&
                c.ssm.inner == 8192);
    c = must_read("{\"architectures\":[\"NemotronHForCausalLM\"],\"model_type\":\"nemotron_h\",\"num_hidden_layers\":4,"
                  "\"hybrid_override_pattern\":\"ME*E\",\"n_routed_experts\":128,\"num_experts_per_tok\":6,"
                  "\"moe_intermediate_size\":1856,\"moe_shared_expert_intermediate_size\":3712,\"n_shared_experts\":1,"
                  "\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,\"n_group\":1,\"topk_group\":1}");
    assert_true(c.experts == 128 && c.experts_used == 6 && c.expert_width == 1856 && c.shared_width == 3712);
    assert_true(c.layer_moe[1] && !c.layer_moe[2] && c.layer_no_attention[1] && c.experts_sigmoid && c.experts_bias &&
                c.expert_groups == 0 && c.experts_renormalise);
    c = must_read(
        "{\"architectures\":[\"NemotronHForCausalLM\"],\"model_type\":\"nemotron_h\","
        "\"layers_block_type\":[\"linear_attention\",\"mlp\",\"full_attention\"]}"); /* as transformers 5 writes it */
    assert_true(c.layers == 3 && c.state_layers == 1 && c.kv_layers == 1 && c.layer_ssm[0] && !c.layer_no_attention[2]);
    c = must_read("{\"architectures\":[\"JambaForCausalLM\"],\"model_type\":\"jamba\",\"num_experts\":16}");
    assert_true(c.kv_layers == 4 && c.state_layers == 28 && !c.layer_no_attention[4] && c.layer_moe[1] && !c.layer_moe[2]);
    assert_true(c.ssm.dt_rank == 256 && c.ssm.inner == 8192 && !c.experts_renormalise);
    c = must_read("{\"architectures\":[\"Plamo2ForCausalLM\"],\"model_type\":\"plamo2\",\"hidden_size\":2048,"
                  "\"num_hidden_layers\":4,\"full_attention_idx\":[3],\"attention_window_size\":1024}");
    assert_true(c.ssm.heads == 64 && c.ssm.head_dim == 128 && c.head_dim == 128 && c.kv_heads == 4 && c.tied_embeddings);
    assert_true(c.ssm.dt_rank == 128 && c.ssm.inner == 8192 && !c.ssm.conv_bias && c.layer_ssm[0] && !c.layer_ssm[1]);
    assert_true(c.layer_windowed[1] && !c.layer_windowed[3] && c.window == 1025 && c.kv_layers == 2);
}

/* What is left out is what the 80B-A3B has. */
static void gated_states(void **state) {
    (void)state;
    struct pl_model_config c =
        must_read("{\"architectures\":[\"Qwen3NextForCausalLM\"],\"model_type\":\"qwen3_next\",\"rope_theta\":10000000}");
    assert_true(c.kv_layers == 12 && c.state_layers == 36 && !c.layer_ssm[3] && c.ssm.inner == 4096 && c.ssm.state == 128);
    assert_true(c.experts == 512 && c.experts_used == 10 && c.expert_width == 512 && c.shared_width == 512 &&
                c.experts_renormalise);
    assert_true(c.rope_dim == 64 && c.head_dim == 256 && c.norm_offset == 1 && c.attn_gate && !c.ssm.in_turn);
    struct pl_kv_shape held = {0};
    pl_model_cache_shape(&c, &held);
    assert_true(held.state_conv == 3 * 8192 && held.state_ssm == 32 * 128 * 128 && held.layers == 12);
    c = must_read(
        "{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"model_type\":\"qwen3_5\",\"text_config\":{"
        "\"model_type\":\"qwen3_5_text\",\"hidden_size\":1024,\"intermediate_size\":3584,\"num_hidden_layers\":24,"
        "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"linear_num_value_heads\":16,\"tie_word_embeddings\":true,"
        "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,"
        "\"mrope_section\":[11,11,10],\"mrope_interleaved\":true}}}");
    assert_true(c.kv_layers == 6 && c.ssm.heads == 16 && c.ssm.groups == 16 && c.experts == 0 && c.rope_base == 1e7f);
    c = must_read("{\"model_type\":\"qwen3_5_moe_text\"}");
    assert_true(c.experts == 256 && c.experts_used == 8 && c.experts_renormalise && c.layer_moe[0]);
    c = must_read(
        "{\"architectures\":[\"Lfm2ForCausalLM\"],\"model_type\":\"lfm2\",\"hidden_size\":1024,\"block_ff_dim\":6656,"
        "\"block_auto_adjust_ff_dim\":true,\"block_multiple_of\":256,\"block_ffn_dim_multiplier\":1.0,"
        "\"num_hidden_layers\":16,\"num_attention_heads\":16,\"full_attn_idxs\":[2,5,8,10,12,14],\"conv_L_cache\":3,"
        "\"norm_eps\":1e-5,\"rope_theta\":1000000.0,\"tie_embedding\":true}"); /* LFM2-350M */
    assert_true(c.mlp_width == 4608 && c.kv_layers == 6 && c.state_layers == 10 && c.layer_ssm[1] && !c.layer_ssm[2]);
    assert_true(c.head_dim == 64 && c.kv_heads == 8 && c.ssm.conv == 3 && c.ssm.inner == 1024 && c.qk_norm);
    struct pl_kv_shape shape = {0};
    pl_model_cache_shape(&c, &shape);
    assert_true(shape.state_conv == 2048 && shape.state_ssm == 0 && shape.layers == 6);
    c = must_read(
        "{\"model_type\":\"lfm2\",\"hidden_size\":2048,\"intermediate_size\":8192,\"block_auto_adjust_ff_dim\":false,"
        "\"num_hidden_layers\":3,\"layer_types\":[\"conv\",\"full_attention\",\"conv\"]}");
    assert_true(c.mlp_width == 8192 && c.kv_layers == 1 && !c.layer_no_attention[1] && c.layer_no_attention[2]);
    c = must_read("{\"model_type\":\"lfm2_moe\",\"num_hidden_layers\":3,\"num_dense_layers\":1,\"use_expert_bias\":false,"
                  "\"layer_types\":[\"conv\",\"full_attention\",\"conv\"]}");
    assert_true(c.experts == 32 && c.experts_used == 4 && c.expert_width == 1792 && c.experts_sigmoid && !c.experts_bias);
    assert_true(c.experts_renormalise && !c.layer_moe[0] && c.layer_moe[1] && c.mlp_width == 7168);
}

/* --- refusals: one change to a sound configuration each --- */

/* InternLM: the original context is what max_position_embeddings says, the factor reaches beyond. */
static void dynamic_scaling_and_gelu(void **state) {
    (void)state;
    struct pl_model_config c = must_read(
        "{\"model_type\":\"llama\",\"hidden_act\":\"gelu\",\"hidden_size\":4096,\"intermediate_size\":14336,"
        "\"max_position_embeddings\":32768,\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
        "\"rope_scaling\":{\"factor\":2.5,\"type\":\"dynamic\"},\"rope_theta\":1000000,\"vocab_size\":92544}");
    assert_int_equal(c.rope_scaling, PL_ROPE_DYNAMIC);
    assert_true(c.rope_context_orig == 32768 && c.context_train == 81920 && c.mlp_act == PL_OPS_GELU);
}

#define SOUND \
    "\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":96"
static const struct {
    const char *json, *part; /* what the message must contain */
    enum pl_status status;
} refused[] = {
    {"{\"model_type\":\"qwen3_next\",\"attention_bias\":true}", "biases in the attention", PL_UNSUPPORTED},
    {"{\"model_type\":\"qwen3_next\",\"linear_key_head_dim\":512}", "linear_key_head_dim is 512", PL_FORMAT},
    {"{\"model_type\":\"qwen3_next\",\"linear_num_value_heads\":30}", "groups divide the heads", PL_FORMAT},
    {"{\"model_type\":\"qwen3_next\",\"full_attention_interval\":0}", "full_attention_interval is 0", PL_FORMAT},
    {"{\"model_type\":\"qwen3_next\",\"layer_types\":[]}", "layer_types has 0 entries", PL_FORMAT},
    {"{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":1,\"layer_types\":[\"conv\"]}", "layer_types[0] is 'conv'",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"lfm2\",\"conv_bias\":true}", "conv_bias is true", PL_UNSUPPORTED},
    {"{\"model_type\":\"lfm2\",\"conv_L_cache\":1}", "conv_L_cache is 1", PL_FORMAT},
    {"{\"model_type\":\"lfm2\",\"num_hidden_layers\":1,\"layer_types\":[\"mamba\"]}", "layer_types[0] is 'mamba'",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"lfm2\",\"num_hidden_layers\":1,\"layer_types\":[7]}", "is 'no text'", PL_UNSUPPORTED},
    {"{\"model_type\":\"lfm2\",\"full_attn_idxs\":[1.5]}", "full_attn_idxs[0]", PL_FORMAT},
    {"{\"model_type\":\"lfm2\",\"full_attn_idxs\":3}", "is no array", PL_FORMAT},
    {"{\"model_type\":\"lfm2\",\"block_ffn_dim_multiplier\":-1}", "give an MLP of", PL_FORMAT},
    {"{\"model_type\":\"lfm2_moe\",\"num_experts_per_tok\":64}", "64 of 32 experts", PL_FORMAT},
    {"{\"model_type\":\"gpt_neox\"," SOUND "}", "known: llama", PL_UNSUPPORTED},
    {"{\"model_type\":\"deepseek_v32\"," SOUND "}", "known: llama", PL_UNSUPPORTED},
    {"{\"model_type\":\"deepseek_v3\",\"index_topk\":2048," SOUND "}", "an indexer picks", PL_UNSUPPORTED},
    {"{\"model_type\":\"deepseek_v3\",\"topk_method\":\"greedy\"," SOUND "}", "noaux_tc with sigmoid", PL_UNSUPPORTED},
    {"{\"model_type\":\"deepseek_v3\",\"n_group\":3," SOUND "}", "4 of 3 groups of 256 experts", PL_FORMAT},
    {"{\"model_type\":\"deepseek_v3\",\"attention_bias\":true," SOUND "}", "biases", PL_UNSUPPORTED},
    {"{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":1024," SOUND "}", "together at most 1024", PL_FORMAT},
    {"{\"model_type\":\"deepseek_v2\",\"num_experts_per_tok\":6,\"norm_topk_prob\":true," SOUND "}", "norm_topk_prob",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"deepseek_v2\",\"num_experts_per_tok\":6,\"moe_layer_freq\":2," SOUND "}", "moe_layer_freq is 2",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"num_experts\":4," SOUND "}", "mixture of experts, which is not implemented for llama",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"mixtral\",\"num_local_experts\":4,\"num_experts_per_tok\":5," SOUND "}", "5 of 4 experts",
     PL_FORMAT},
    {"{\"model_type\":\"qwen3_moe\",\"num_local_experts\":4,\"num_experts_per_tok\":5," SOUND "}", "5 of 4 experts",
     PL_FORMAT},
    {"{\"model_type\":\"gpt_oss\",\"num_local_experts\":8,\"swiglu_alpha\":2," SOUND "}", "swiglu_alpha 2", PL_UNSUPPORTED},
    {"{\"model_type\":\"gpt_oss\",\"num_local_experts\":8,\"swiglu_limit\":0," SOUND "}", "swiglu_limit 0", PL_UNSUPPORTED},
    {"{\"model_type\":\"olmoe\",\"clip_qkv\":8," SOUND "}", "clip_qkv is 8", PL_UNSUPPORTED},
    {"{" SOUND "}", "model_type is nothing", PL_FORMAT},
    {"[1]", "object", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]," SOUND "}", "ForCausalLM",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"num_local_experts\":8," SOUND "}", "mixture of experts", PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"hidden_act\":\"relu\"," SOUND "}", "known: silu", PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"rope_interleaved\":true," SOUND "}", "rope_interleaved", PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"partial_rotary_factor\":0.5," SOUND "}", "partial_rotary_factor", PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"ntk\",\"factor\":2.0}," SOUND "}", "known: default",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":0.5}," SOUND "}", "at least 1", PL_FORMAT},
    {"{\"model_type\":\"mixtral\",\"hidden_act\":\"gelu\"," SOUND "}", "known: silu, gelu_pytorch_tanh", PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2.0}," SOUND "}",
     "short_factor has 0 entries", PL_FORMAT},
    {"{\"model_type\":\"phi3\",\"original_max_position_embeddings\":64,\"rope_scaling\":{\"rope_type\":\"longrope\","
     "\"short_factor\":[1,1,1,1,1,1,1,0],\"long_factor\":[1,1,1,1,1,1,1,1]}," SOUND "}",
     "short_factor[7] is no positive number", PL_FORMAT},
    {"{\"model_type\":\"phi3\",\"partial_rotary_factor\":1.5," SOUND "}", "at most 1 was expected", PL_FORMAT},
    {"{\"model_type\":\"smollm3\",\"no_rope_layers\":[1]," SOUND "}", "no_rope_layers has 1 entries", PL_FORMAT},
    {"{\"model_type\":\"smollm3\",\"no_rope_layers\":[1,0.5]," SOUND "}", "no_rope_layers[1] is a real number", PL_FORMAT},
    {"{\"model_type\":\"smollm3\",\"no_rope_layers\":[true,1]," SOUND "}", "no_rope_layers[0] is true; an integer",
     PL_FORMAT},
    {"{\"model_type\":\"smollm3\",\"no_rope_layers\":[1,\"1\"]," SOUND "}", "no_rope_layers[1] is a string", PL_FORMAT},
    {"{\"model_type\":\"smollm3\",\"no_rope_layers\":[1,null]," SOUND "}", "no_rope_layers[1] is null", PL_FORMAT},
    {"{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[0,\"1\"]," SOUND "}", "mlp_only_layers[1] is a string", PL_FORMAT},
    {"{\"model_type\":\"plamo2\",\"full_attention_idx\":[false]," SOUND "}", "full_attention_idx[0] is false", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"use_bidirectional_attention\":1," SOUND "}",
     "use_bidirectional_attention is an integer; true or false", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"num_local_experts\":\"8\"," SOUND "}", "num_local_experts is a string; a number",
     PL_FORMAT},
    {"{\"model_type\":\"llama\",\"logits_scaling\":\"1\"," SOUND "}", "logits_scaling is a string", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"architectures\":\"BertModel\"," SOUND "}", "architectures is a string; an array",
     PL_FORMAT},
    {"{\"model_type\":\"llama\",\"architectures\":[5]," SOUND "}", "architectures[0] is an integer", PL_FORMAT},
    {"{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":5}," SOUND "}", "text_config.model_type is an integer",
     PL_FORMAT},
    {"{\"model_type\":\"granite\",\"residual_multiplier\":0," SOUND "}", "residual scale 0", PL_FORMAT},
    {"{\"model_type\":\"granite\",\"logits_scaling\":-4," SOUND "}", "divided by -4", PL_FORMAT},
    {"{\"model_type\":\"cohere\",\"use_qk_norm\":true," SOUND "}", "use_qk_norm", PL_UNSUPPORTED},
    {"{\"model_type\":\"mistral3\"," SOUND "}", "text_config is nothing", PL_FORMAT},
    {"{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mistral4\"}," SOUND "}", "'mistral4'", PL_UNSUPPORTED},
    {"{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\"}," SOUND "}", "rope_parameters is missing",
     PL_FORMAT},
    {"{\"model_type\":\"ministral3\",\"rope_parameters\":{\"llama_4_scaling_beta\":0.1}," SOUND "}",
     "original_max_position_embeddings is missing", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"linear\"}," SOUND "}", "positive factor", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_scaling\":\"linear\"," SOUND "}", "object was expected", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_theta\":\"1e6\"}," SOUND "}", "rope_theta is a string", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_parameters\":[1]," SOUND "}", "rope_parameters is an array; an object", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_parameters\":\"x\"," SOUND "}", "rope_parameters is a string", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_parameters\":5," SOUND "}", "rope_parameters is an integer", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_parameters\":true," SOUND "}", "rope_parameters is true", PL_FORMAT},
    {"{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"full_attention\":5}," SOUND "}",
     "full_attention is an integer; an object", PL_FORMAT},
    {"{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"sliding_attention\":[]}," SOUND "}",
     "sliding_attention is an array", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
     "\"high_freq_factor\":1}," SOUND "}",
     "low < high", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}," SOUND "}", "gptq",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"llama\",\"rope_theta\":0," SOUND "}", "rotary bases", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rope_theta\":\"big\"," SOUND "}", "rope_theta is a string", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"rms_norm_eps\":-1," SOUND "}", "epsilon", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"num_key_value_heads\":3," SOUND "}", "whole number", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"num_key_value_heads\":0," SOUND "}", "num_key_value_heads is 0", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"num_key_value_heads\":8," SOUND "}", "num_key_value_heads is 8", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"head_dim\":15," SOUND "}", "even number", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"head_dim\":1e9," SOUND "}", "head_dim is 1000000000", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"head_dim\":16.5," SOUND "}", "integer was expected", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"max_position_embeddings\":-5," SOUND "}", "max_position_embeddings is -5", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"attention_bias\":1," SOUND "}", "true or false", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"hidden_size\":63,\"num_attention_heads\":4,\"vocab_size\":96,\"num_hidden_layers\":1}",
     "head_dim is missing", PL_FORMAT},
    {"{\"model_type\":\"llama\",\"num_hidden_layers\":100000}", "num_hidden_layers is 100000", PL_FORMAT},
    {"{\"model_type\":\"gemma3_text\",\"use_bidirectional_attention\":true," SOUND "}", "use_bidirectional_attention",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"gemma3_text\",\"query_pre_attn_scalar\":0," SOUND "}", "query_pre_attn_scalar", PL_FORMAT},
    {"{\"model_type\":\"gemma3_text\",\"layer_types\":[\"full_attention\"]," SOUND "}", "one per layer", PL_FORMAT},
    {"{\"model_type\":\"gemma3_text\",\"layer_types\":[\"full_attention\",\"chunked_attention\"]," SOUND "}",
     "chunked_attention", PL_UNSUPPORTED},
    {"{\"model_type\":\"gemma3\"," SOUND "}", "text_config", PL_FORMAT},
    {"{\"model_type\":\"mamba\",\"use_bias\":true," SOUND "}", "use_bias", PL_UNSUPPORTED},
    {"{\"model_type\":\"mamba\",\"state_size\":4096," SOUND "}", "state_size", PL_FORMAT},
    {"{\"model_type\":\"mamba\",\"conv_kernel\":1," SOUND "}", "conv_kernel", PL_FORMAT},
    {"{\"model_type\":\"mamba\",\"expand\":1e9," SOUND "}", "expand", PL_FORMAT},
    {"{\"model_type\":\"mamba2\",\"num_heads\":3," SOUND "}", "heads times their size", PL_FORMAT},
    {"{\"model_type\":\"mamba2\",\"time_step_limit\":[0.5]," SOUND "}", "time_step_limit", PL_FORMAT},
    {"{\"model_type\":\"mamba2\",\"num_heads\":2,\"head_dim\":64,\"n_groups\":1,\"time_step_limit\":[2,1]," SOUND "}",
     "time steps from 2 to 1", PL_FORMAT},
    {"{\"model_type\":\"granitemoehybrid\",\"num_local_experts\":0,\"layer_types\":[\"mamba\"]," SOUND "}", "one per layer",
     PL_FORMAT},
    {"{\"model_type\":\"granitemoehybrid\",\"num_local_experts\":0,\"layer_types\":[\"mamba\",\"rwkv\"]," SOUND "}", "rwkv",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"falcon_h1\",\"projectors_bias\":true," SOUND "}", "projectors_bias", PL_UNSUPPORTED},
    {"{\"model_type\":\"falcon_h1\",\"ssm_multipliers\":[1,2]," SOUND "}", "ssm_multipliers has 2", PL_FORMAT},
    {"{\"model_type\":\"falcon_h1\",\"mamba_d_ssm\":512,\"mamba_n_heads\":1," SOUND "}", "up to 256", PL_UNSUPPORTED},
    {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"ME\",\"moe_latent_size\":64," SOUND "}",
     "moe_latent_size", PL_UNSUPPORTED},
    {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"ME\",\"n_routed_experts\":4,\"num_experts_per_tok\":"
     "5," SOUND "}",
     "5 of 4 experts", PL_FORMAT},
    {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"M\"," SOUND "}", "names 1 layers", PL_FORMAT},
    {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"M*M\"," SOUND "}", "names 3 layers", PL_FORMAT},
    {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"M?\"," SOUND "}", "layer 1", PL_FORMAT},
    {"{\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"mamba\"]," SOUND "}", "names 1 layers", PL_FORMAT},
    {"{\"model_type\":\"nemotron_h\",\"mamba_hidden_act\":\"gelu\"," SOUND "}", "mamba_hidden_act is 'gelu'",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"mamba\",\"hidden_act\":\"gelu_pytorch_tanh\"," SOUND "}", "hidden_act is 'gelu_pytorch_tanh'",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"falcon_h1\",\"hidden_act\":\"gelu_pytorch_tanh\"," SOUND "}", "state-space layers; silu is",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"falcon_mamba\",\"mixer_rms_eps\":-1," SOUND "}", "norm epsilon -1", PL_FORMAT},
    {"{\"model_type\":\"mamba2\",\"time_step_limit\":[\"mamba\",\"mamba\"]," SOUND "}", "no pair of numbers", PL_FORMAT},
    {"{\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"M*\",\"mlp_hidden_act\":7," SOUND "}", "relu2 is",
     PL_UNSUPPORTED},
    {"{\"model_type\":\"granitemoehybrid\",\"num_local_experts\":0,\"position_embedding_type\":true," SOUND "}",
     "is no text", PL_FORMAT},
    {"{\"model_type\":\"bitnet\",\"quantization_config\":{\"quant_method\":\"bitnet\",\"modules_to_not_convert\":\"x\"}"
     "," SOUND "}",
     "modules_to_not_convert is a string", PL_FORMAT},
    {"{\"model_type\":\"deepseek_v3\",\"topk_method\":0," SOUND "}", "topk_method is an integer", PL_FORMAT},
    {"{\"model_type\":\"deepseek_v3\",\"scoring_func\":[]," SOUND "}", "scoring_func is an array", PL_FORMAT},
    {"{\"model_type\":\"nemotron_h\",\"mlp_hidden_act\":\"silu\"," SOUND "}", "relu2 is", PL_UNSUPPORTED},
    {"{\"model_type\":\"plamo2\",\"mamba_step\":1," SOUND "}", "mamba_step is 1", PL_FORMAT},
    {"{\"model_type\":\"plamo2\",\"full_attention_idx\":3," SOUND "}", "full_attention_idx is no array", PL_FORMAT},
};

static void refusals_name_the_field(void **state) {
    (void)state;
    for (size_t i = 0; i < PL_COUNT_OF(refused); i++) {
        struct pl_model_config c;
        struct pl_err err;
        enum pl_status st = read_json(refused[i].json, &c, &err);
        if (st != refused[i].status || strstr(err.text, refused[i].part) == NULL)
            fail_msg("%s\n  gave %s: %s", refused[i].json, pl_status_name(st), err.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_3_2),
        cmocka_unit_test(smollm2),
        cmocka_unit_test(llama_2_and_old_ones),
        cmocka_unit_test(mistral),
        cmocka_unit_test(qwen2_5),
        cmocka_unit_test(qwen3),
        cmocka_unit_test(families_of_2024_and_2025),
        cmocka_unit_test(gemma_3),
        cmocka_unit_test(deepseek),
        cmocka_unit_test(state_space),
        cmocka_unit_test(gated_states),
        cmocka_unit_test(dynamic_scaling_and_gelu),
        cmocka_unit_test(refusals_name_the_field),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
