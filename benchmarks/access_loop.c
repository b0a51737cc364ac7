/* Opens, asks for the size of, reads, reads again and closes every file that standard input names, PASSES times. Prints the
 * mean over all files of the fastest access to each, in nanoseconds: other programs only ever add to one. Arguments: PASSES. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_FILES 100000
#define MOST_BYTES (16 << 20)

static char *paths[MOST_FILES];
static long fastest[MOST_FILES];
static char bytes[MOST_BYTES];

static void access_once(const char *path)
{
    struct stat status;
    int descriptor = open(path, O_RDONLY);
    if (descriptor < 0 || fstat(descriptor, &status) != 0 || read(descriptor, bytes, (size_t)status.st_size) != status.st_size ||
        read(descriptor, bytes, 1) != 0)
        exit(1);
    close(descriptor);
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

int main(int count, char **arguments)
{
    static char line[PATH_MAX + 1];
    int files = 0;
    double sum = 0;
    while (files < MOST_FILES && fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = 0;
        fastest[files] = LONG_MAX;
        paths[files++] = strdup(line);
    }
    for (int pass = count > 1 ? atoi(arguments[1]) : 1; pass > 0; pass--)
        for (int place = 0; place < files; place++) {
            long start = now();
            access_once(paths[place]);
            long took = now() - start;
            fastest[place] = took < fastest[place] ? took : fastest[place];
        }
    for (int place = 0; place < files; place++)
        sum += (double)fastest[place];
    printf("%.1f\n", sum / files);
    return files == 0;
}
