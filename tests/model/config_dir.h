/* A folder that holds a configuration and safetensors of one tensor: what reading config.json alone needs. */
#ifndef TESTS_MODEL_CONFIG_DIR_H
#define TESTS_MODEL_CONFIG_DIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static void write_file(const char *name, const void *data, size_t len) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/plumb-config-XXXXXX");
    assert_non_null(mkdtemp(dir));
    static const char header[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}      ";
    char st[8 + sizeof header - 1 + 4] = {0};
    st[0] = sizeof header - 1;
    memcpy(st + 8, header, sizeof header - 1);
    write_file("model.safetensors", st, sizeof st);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    return rmdir(dir);
}

#endif
