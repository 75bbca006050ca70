#include <stdio.h>
#include "plumb.h"
int main(void) {
    printf("plumb %s\n", PLUMB_VERSION);
    return 0;
}
