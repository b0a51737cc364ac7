/* Decides where the bytes of reads came from (native/capture/source.c). Each line of input has the
 * facts of one read, as words:
 *
 *     blocks|memory|unreliable|unknown   what the counters say on this type of file system
 *     direct                             O_DIRECT
 *     bytes=N                            returned by the read
 *     nowait=N  missed  stale            returned by a call with RWF_NOWAIT; a second call
 * followed; the first counters are older nowait_blocks=N  blocks=N          512-byte blocks
 * submitted by the first call, and by the whole read waited  preempted                  voluntary
 * and involuntary switches, by the counters stayed  switched  us=N             the result of the
 * switch watch, and how long the read took readahead=N                        bytes fetched before
 * for the read that begins here offset=N                           added to all counters: they
 * count from the start of the thread
 *
 * Prints for each line the parts of the read by their sources, and the readahead for the next read
 * if there is any. */
#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *value_of(const char *word, const char *name)
{
    size_t length = strlen(name);
    return strncmp(word, name, length) == 0 && word[length] == '=' ? word + length + 1 : NULL;
}

static int parse(char *line, struct read_facts *read)
{
    static const char *const accountings[] = {"unknown", "blocks", "memory", "unreliable"};
    int64_t blocks = 0, nowait_blocks = 0, waits = 0, preemptions = 0, offset = 0;
    const struct {
        const char *name;
        int64_t *value;
    } numbers[] = {
        {"bytes", &read->bytes},    {"nowait", &read->nowait_bytes},
        {"us", &read->duration_ns}, {"readahead", &read->readahead},
        {"blocks", &blocks},        {"nowait_blocks", &nowait_blocks},
        {"offset", &offset},
    };
    for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        int known = 0;
        for (int number = 0; number < 4; number++)
            if (strcmp(word, accountings[number]) == 0)
                read->accounting = (enum accounting)number, known = 1;
        for (size_t place = 0; place < sizeof numbers / sizeof *numbers; place++)
            if (value_of(word, numbers[place].name) != NULL)
                *numbers[place].value = atoll(value_of(word, numbers[place].name)), known = 1;
        if (strcmp(word, "direct") == 0)
            read->is_direct = true, known = 1;
        else if (strcmp(word, "missed") == 0)
            read->nowait_missed = true, known = 1;
        else if (strcmp(word, "stale") == 0)
            read->stale_before = true, known = 1;
        else if (strcmp(word, "waited") == 0)
            waits = known = 1;
        else if (strcmp(word, "preempted") == 0)
            preemptions = known = 1;
        else if (strcmp(word, "stayed") == 0)
            read->switched = SWITCHED_NOT, known = 1;
        else if (strcmp(word, "switched") == 0)
            read->switched = SWITCHED_OUT, known = 1;
        if (!known) {
            fprintf(stderr, "unknown word: %s\n", word);
            return -1;
        }
    }
    read->duration_ns *= 1000;
    read->before = (struct usage){offset, offset, offset, 0};
    read->between = (struct usage){offset + nowait_blocks, offset, offset, 0};
    read->after = (struct usage){offset + blocks, offset + waits, offset + preemptions, 0};
    return 0;
}

static void print_source(const char *source, int64_t bytes, const char **separator)
{
    if (bytes <= 0)
        return;
    printf("%s%s %lld", *separator, source, (long long)bytes);
    *separator = " + ";
}

static void print_part(int64_t bytes, int64_t storage, const char **separator)
{
    if (storage == SOURCE_OF_NONE_KNOWN) {
        print_source("unknown", bytes, separator);
        return;
    }
    print_source("storage", storage, separator);
    print_source("page_cache", bytes - storage, separator);
}

int main(void)
{
    char line[1024];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *separator = "";
        struct read_facts read = {0};
        if (parse(line, &read) != 0)
            return 1;
        struct read_sources sources = decide_sources(&read);
        print_part(read.nowait_bytes, sources.nowait_storage, &separator);
        print_part(read.bytes - read.nowait_bytes, sources.rest_storage, &separator);
        if (sources.readahead > 0)
            printf(", readahead %lld", (long long)sources.readahead);
        puts("");
    }
    return 0;
}
