/* Several communicators, each with a thread that enqueues and a proxy thread that reports what the
 * GPU did, as in NCCL. Arguments: PLUGIN VERSION COMMUNICATORS OPERATIONS. Channels end in another
 * order than they began, and some operations never end. A tenth of the communicators is destroyed
 * while operations are open. */
#include "nccl_calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define QUEUE 64
#define CHANNELS 4

static int num_operations, num_communicators;

struct rank {
    int number;
    struct communicator *communicator;
    _Atomic(struct operation *) queue[QUEUE];
};

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec + 77777;
}

static void *run_proxy(void *argument)
{
    struct rank *rank = argument;
    for (int number = 0; number < num_operations; number++) {
        struct operation *operation;
        while ((operation = atomic_load(&rank->queue[number % QUEUE])) == NULL)
            sched_yield();
        for (int channel = 0; channel < CHANNELS; channel++)
            nccl_start_channel(operation, channel, now());
        if (nccl_mask() & 8)
            nccl_start_proxy(operation, getpid()), nccl_send(operation), nccl_receive(operation);
        for (int channel = CHANNELS - 1; channel >= (number % 100 == 99); channel--)
            nccl_stop_channel(operation, channel, now());
        if (nccl_mask() & 8)
            nccl_stop_proxy(operation);
        nccl_free(operation);
        atomic_store(&rank->queue[number % QUEUE], NULL);
    }
    return NULL;
}

static void *run_host(void *argument)
{
    struct rank *rank = argument;
    pthread_t proxy;
    rank->communicator = nccl_open(0x1000 + (uint64_t)rank->number, "group", 8, rank->number);
    pthread_create(&proxy, NULL, run_proxy, rank);
    for (int number = 0; number < num_operations; number++) {
        struct operation *made = nccl_enqueue(rank->communicator, number % 3 ? "AllReduce" : "Send",
                                              1000, "ncclFloat32", 1, (uint64_t)number, 0);
        while (atomic_load(&rank->queue[number % QUEUE]) != NULL)
            sched_yield();
        atomic_store(&rank->queue[number % QUEUE], made);
    }
    if (rank->number % 10 != 9)
        pthread_join(proxy, NULL);
    nccl_close(rank->communicator);
    if (rank->number % 10 == 9)
        pthread_join(proxy, NULL);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5 || !nccl_load(argv[1], atoi(argv[2])))
        return 2;
    num_communicators = atoi(argv[3]), num_operations = atoi(argv[4]);
    struct rank *ranks = calloc((size_t)num_communicators, sizeof *ranks);
    pthread_t *threads = calloc((size_t)num_communicators, sizeof *threads);
    for (int number = 0; number < num_communicators; number++) {
        ranks[number].number = number;
        pthread_create(&threads[number], NULL, run_host, &ranks[number]);
    }
    for (int number = 0; number < num_communicators; number++)
        pthread_join(threads[number], NULL);
    nccl_unload();
    free(ranks);
    free(threads);
    return 0;
}
