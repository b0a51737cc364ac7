/* Makes calls that the library follows, in a thread with the smallest stack there is.
 *
 * small_stack FILE */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *path;
static char block[65536];

static void read_file(void)
{
    struct stat status;
    int descriptor = open(path, O_RDONLY);
    long sum = read(descriptor, block, 4) + pread(descriptor, block, 4, 1);
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, descriptor, 0);
    printf("read %ld, %d\n", sum, fstat(descriptor, &status) == 0 && mapped != MAP_FAILED);
    close(descriptor);
}

/* Until it is decided who writes to the pipe. */
static void read_pipe(void)
{
    int ends[2];
    long sum = 0, got;
    pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child == 0) {
        for (int number = 0; number < 64; number++)
            if (write(ends[1], block, sizeof block) < 0)
                break;
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], block, sizeof block)) > 0)
        sum += got;
    close(ends[0]);
    waitpid(child, NULL, 0);
    printf("received %ld\n", sum);
}

static void start_program(void)
{
    char name[] = "true", *arguments[] = {name, NULL};
    int status = -1;
    pid_t child;
    if (posix_spawnp(&child, name, NULL, NULL, arguments, environ) == 0)
        waitpid(child, &status, 0);
    printf("started %d\n", status);
}

static void *run(void *nothing)
{
    read_file();
    read_pipe();
    start_program();
    return nothing;
}

int main(int count, char **arguments)
{
    pthread_attr_t attributes;
    pthread_t thread;
    path = arguments[count - 1];
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) != 0 ||
        pthread_create(&thread, &attributes, run, NULL) != 0)
        return 1;
    pthread_join(thread, NULL);
    return 0;
}
