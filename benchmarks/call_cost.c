/* What the capture library adds to a call: run it with and without, in a quiet moment, and compare.
 * Arguments: FILE ROUNDS, a file of at most 8 KB. Prints medians in nanoseconds, of which two clock
 * readings are a part. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *path;
static int file, device;
static char bytes[8192];

static void cycle(void)
{
    struct stat status;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (fstat(descriptor, &status) != 0 || read(descriptor, bytes, sizeof bytes) < 0 ||
        read(descriptor, bytes, sizeof bytes) != 0)
        exit(1);
    close(descriptor);
}

static void read_cached(void)
{
    if (pread(file, bytes, 4096, 0) < 0)
        exit(1);
}

static void ask_status(void)
{
    struct stat status;
    if (fstat(file, &status) != 0)
        exit(1);
}

static void read_device(void)
{
    if (read(device, bytes, 1) != 0)
        exit(1);
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    long difference = *(const long *)left - *(const long *)right;
    return (difference > 0) - (difference < 0);
}

static void measure(const char *name, void (*call)(void), int rounds)
{
    long *times = malloc((size_t)rounds * sizeof *times);
    for (int round = 0; round < rounds; round++) {
        long start = now();
        call();
        times[round] = now() - start;
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    printf("%-45s %ld\n", name, times[rounds / 2]);
    free(times);
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    path = arguments[1];
    file = open(path, O_RDONLY);
    device = open("/dev/null", O_RDONLY);
    int rounds = atoi(arguments[2]);
    measure("open, fstat, read, read, close", cycle, rounds);
    measure("pread of 4 KB, cached", read_cached, rounds);
    measure("fstat", ask_status, rounds);
    measure("read of a device", read_device, rounds);
    return 0;
}
