/* What the NCCL plugin takes for an operation: the calls that NCCL makes for a collective of 8
 * channels. Arguments: PLUGIN ROUNDS. Prints medians over 100 parts of the rounds, in nanoseconds:
 * of the calls by the thread of the application, of those by the proxy thread. */
#include "profiler_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PARTS 100
#define CHANNELS 8

static struct profiler_v5 *plugin;
static void *context;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *start(struct event_v5 event)
{
    void *handle = NULL;
    plugin->start(context, &handle, &event);
    return handle;
}

static void *enqueue(uint64_t sequence)
{
    void *call = start((struct event_v5){.type = EVENT_COLLECTIVE_CALL});
    plugin->stop(call);
    struct event_v5 event = {.type = EVENT_COLLECTIVE, .parent = call};
    event.collective.sequence = sequence;
    event.collective.function = "AllReduce";
    event.collective.datatype = "ncclFloat32";
    event.collective.count = 1 << 20;
    event.collective.num_channels = CHANNELS;
    void *operation = start(event);
    plugin->stop(operation);
    return operation;
}

static void run(void *operation, uint64_t timer)
{
    void *channels[CHANNELS];
    for (int channel = 0; channel < CHANNELS; channel++) {
        struct event_v5 event = {.type = EVENT_KERNEL_CHANNEL, .parent = operation};
        event.kernel_channel.timer = timer + (uint64_t)channel;
        channels[channel] = start(event);
    }
    for (int channel = 0; channel < CHANNELS; channel++) {
        union event_update update = {.timer = timer + 1000 + (uint64_t)channel};
        plugin->record(channels[channel], KERNEL_CHANNEL_STOPS, &update);
        plugin->stop(channels[channel]);
    }
}

static int compare(const void *first, const void *second)
{
    double difference = *(const double *)first - *(const double *)second;
    return difference < 0 ? -1 : difference > 0;
}

int main(int argc, char **argv)
{
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int rounds = argc == 3 ? atoi(argv[2]) / PARTS : 0, mask = 0;
    void **operations = calloc((size_t)rounds, sizeof *operations);
    double by_host[PARTS], by_proxy[PARTS];
    if (library == NULL || (plugin = dlsym(library, "ncclProfiler_v6")) == NULL)
        return 1;
    plugin->init(&context, 1, &mask, "world", 1, 8, 0, NULL);
    if (mask == 0)
        return 1;
    for (int part = 0; part < PARTS; part++) {
        double begin = now();
        for (int round = 0; round < rounds; round++)
            operations[round] = enqueue((uint64_t)round);
        double middle = now();
        for (int round = 0; round < rounds; round++)
            run(operations[round], (uint64_t)(part * rounds + round + 1) * 10000);
        by_host[part] = (middle - begin) / rounds;
        by_proxy[part] = (now() - middle) / rounds;
    }
    qsort(by_host, PARTS, sizeof *by_host, compare);
    qsort(by_proxy, PARTS, sizeof *by_proxy, compare);
    printf("%.1f %.1f\n", by_host[PARTS / 2], by_proxy[PARTS / 2]);
    return 0;
}
