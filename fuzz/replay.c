/* replay - runs a libFuzzer entry point over files, so that corpora are tests with any compiler.
 * usage: replay DIRECTORY|FILE...   One TAP line per place; a crash is the sanitizer's to report. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak)); /* a target may have one */

static int run_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return -1;
    if (fseek(f, 0, SEEK_END) != 0) return fclose(f), -1;
    long size = ftell(f);
    if (size < 0 || fseek(f, 0, SEEK_SET) != 0) return fclose(f), -1;
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1); /* exact size: the sanitizer sees one byte too many */
    size_t got = data == NULL ? 0 : fread(data, 1, (size_t)size, f);
    fclose(f);
    if (data == NULL || got != (size_t)size) return free(data), -1;
    (void)LLVMFuzzerTestOneInput(data, got);
    free(data);
    return 0;
}

static int run_place(const char *path, int *files) {
    struct stat st;
    if (stat(path, &st) != 0) return -1;
    if (!S_ISDIR(st.st_mode)) return (*files)++, run_file(path);
    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, alphasort), failed = n < 0 ? -1 : 0;
    for (int i = 0; i < n; i++) {
        char child[4096];
        int len = snprintf(child, sizeof child, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && (len < 0 || (size_t)len >= sizeof child || run_place(child, files) != 0)) {
            printf("# %s: cannot be read\n", child);
            failed = -1;
        }
        free(names[i]);
    }
    free(names);
    return failed;
}

int main(int argc, char **argv) {
    int bad = 0;
    if (LLVMFuzzerInitialize != NULL) (void)LLVMFuzzerInitialize(&argc, &argv);
    printf("1..%d\n", argc - 1);
    for (int i = 1; i < argc; i++) {
        int files = 0, rc = run_place(argv[i], &files);
        if (rc == 0 && files == 0) {
            printf("# no inputs\n");
            rc = -1;
        }
        printf("%s %d - %s (%d inputs)\n", rc == 0 ? "ok" : "not ok", i, argv[i], files);
        fflush(stdout);
        bad |= rc != 0;
    }
    return bad;
}
