/* Nanoseconds of calls that wait for nothing, the best of five rounds, for `wakers.py`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

#define BEST(name, count, calls)                             \
    do {                                                     \
        double best = 1e9;                                   \
        for (int round = 0; round < 5; round++) {            \
            double begin = now();                            \
            for (int number = 0; number < count; number++) { \
                calls;                                       \
            }                                                \
            double took = (now() - begin) / count;           \
            best = took < best ? took : best;                \
        }                                                    \
        printf("%s,%.1f\n", name, best);                     \
    } while (0)

int main(void)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    sem_t semaphore;
    char bytes[8] = "";
    int null = open("/dev/null", O_WRONLY), self = open("/proc/self/comm", O_RDONLY), ends[2];
    if (pipe(ends) != 0 || sem_init(&semaphore, 0, 1) != 0 || read(self, bytes, 8) < 0)
        return 1; /* the read begins the recording */
    BEST("lock and release", 2000000, pthread_mutex_lock(&lock); pthread_mutex_unlock(&lock));
    BEST("semaphore", 2000000, sem_wait(&semaphore); sem_post(&semaphore));
    BEST("signal of a condition", 2000000, pthread_cond_signal(&condition));
    BEST("write to /dev/null", 500000, if (write(null, bytes, 1) < 0) return 1);
    BEST("write to a pipe, and read", 200000,
         if (write(ends[1], bytes, 8) < 0 || read(ends[0], bytes, 8) < 0) return 1);
    return 0;
}
