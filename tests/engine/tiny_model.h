/* Tiny chat models (tests/tiny_chat_model.py) in a folder of this process's own: programs of the suite run side by side. */
#ifndef TESTS_ENGINE_TINY_MODEL_H
#define TESTS_ENGINE_TINY_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char tiny_folder[256];

static void tiny_remove(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", tiny_folder);
    if (system(command) != 0) fprintf(stderr, "%s is left behind\n", tiny_folder);
}

/* The folder of the model of that family ("llama", "mamba", "hybrid", "plamo2", "nemotron", "windows"), written when it is
 * first asked for and removed at exit. The path is good until the next call. */
static const char *tiny_model(const char *family) {
    static char path[300];
    char command[400];
    const char *tmp = getenv("TMPDIR");
    if (tiny_folder[0] == '\0') {
        snprintf(tiny_folder, sizeof tiny_folder, "%s/plumb-tiny-XXXXXX", tmp != NULL ? tmp : "/tmp");
        assert_non_null(mkdtemp(tiny_folder));
        atexit(tiny_remove);
    }
    snprintf(path, sizeof path, "%s/%s", tiny_folder, family);
    if (access(path, F_OK) == 0) return path;
    snprintf(command, sizeof command, "python3 tests/tiny_chat_model.py '%s' %s", path, family);
    assert_int_equal(system(command), 0);
    return path;
}

#endif
