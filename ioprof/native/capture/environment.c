#include "environment.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define OWN_PREFIX "IOPROF_"
#define SPOOL "IOPROF_SPOOL="
#define PRELOAD "LD_PRELOAD="
#define PYTHONPATH "PYTHONPATH="
#define SITE "/instrument/site"
#define MAX_OWN 16

/* Copies, since the job may change its environment. */
static struct {
    char text[16384];
    size_t used;
    int num_own;
    const char *own[MAX_OWN]; /* IOPROF_NAME=value */
    const char *spool, *library, *site;
} kept;

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* NULL where there is no room. */
static const char *keep(const char *text, size_t length)
{
    if (kept.used + length + 1 > sizeof kept.text)
        return NULL;
    char *copy = memcpy(kept.text + kept.used, text, length);
    copy[length] = '\0';
    kept.used += length + 1;
    return copy;
}

/* The entry of a search path that ends in SITE. */
static const char *keep_site(const char *path)
{
    for (const char *place = path; *place != '\0';) {
        size_t length = strcspn(place, ":");
        if (length >= sizeof SITE - 1 &&
            memcmp(place + length - (sizeof SITE - 1), SITE, sizeof SITE - 1) == 0)
            return keep(place, length);
        place += length + (place[length] == ':');
    }
    return NULL;
}

void keep_environment(void)
{
    Dl_info library;
    bool has_hooks = true;
    if (dladdr((void *)&kept, &library) != 0 && library.dli_fname[0] == '/')
        kept.library = keep(library.dli_fname, strlen(library.dli_fname));
    for (char *const *place = environ; place != NULL && *place != NULL; place++) {
        has_hooks &= strcmp(*place, "IOPROF_HOOKS=off") != 0;
        if (starts_with(*place, PYTHONPATH))
            kept.site = keep_site(*place + sizeof PYTHONPATH - 1);
        if (!starts_with(*place, OWN_PREFIX) || kept.num_own == MAX_OWN)
            continue;
        const char *copy = keep(*place, strlen(*place));
        if (copy != NULL)
            kept.own[kept.num_own++] = copy;
        if (copy != NULL && starts_with(copy, SPOOL))
            kept.spool = copy;
    }
    if (!has_hooks)
        kept.site = NULL;
}

const char *site_folder(void)
{
    return kept.site;
}

/* ------------------------------------------------------------------------------------- at exec */

/* Whether an environment has a variable, given as NAME=value. */
static bool has_variable(char *const *environment, const char *variable)
{
    size_t length = strcspn(variable, "=") + 1;
    for (; environment != NULL && *environment != NULL; environment++)
        if (strncmp(*environment, variable, length) == 0)
            return true;
    return false;
}

struct addition find_addition(char *const *environment)
{
    struct addition addition = {false, 0, 0, "", kept.site == NULL ? NULL : ""};
    bool has_spool = false;
    for (char *const *place = environment; place != NULL && *place != NULL;
         place++, addition.count++) {
        const char *variable = *place;
        if (variable[0] == 'L' && starts_with(variable, PRELOAD))
            addition.preload =
                strstr(variable, "_capture") != NULL ? NULL : variable + sizeof PRELOAD - 1;
        else if (variable[0] == 'P' && kept.site != NULL && starts_with(variable, PYTHONPATH))
            addition.pythonpath =
                strstr(variable, kept.site) != NULL ? NULL : variable + sizeof PYTHONPATH - 1;
        else if (variable[0] == 'I' && starts_with(variable, SPOOL)) {
            has_spool = true;
            if (kept.spool == NULL || strcmp(variable, kept.spool) != 0)
                return NO_ADDITION;
        }
    }
    if (kept.library == NULL || kept.spool == NULL ||
        (has_spool && addition.preload == NULL && addition.pythonpath == NULL))
        return addition;
    addition.bytes = (addition.count + MAX_OWN + 3) * sizeof(char *);
    if (addition.preload != NULL)
        addition.bytes += sizeof PRELOAD + 1 + strlen(kept.library) + strlen(addition.preload);
    if (addition.pythonpath != NULL)
        addition.bytes += sizeof PYTHONPATH + 1 + strlen(kept.site) + strlen(addition.pythonpath);
    return addition;
}

bool can_open_library(void)
{
    if (kept.library == NULL)
        return true;
    int descriptor = open(kept.library, O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0)
        close(descriptor);
    return descriptor >= 0;
}

struct addition find_removal(char *const *environment, bool hooks)
{
    struct addition addition = {true, 0, 0, NULL, NULL};
    size_t room = 0;
    for (char *const *place = environment; place != NULL && *place != NULL;
         place++, addition.count++) {
        if (kept.library != NULL && starts_with(*place, PRELOAD) &&
            strstr(*place, kept.library) != NULL)
            addition.preload = *place + sizeof PRELOAD - 1;
        else if (!hooks && kept.site != NULL && starts_with(*place, PYTHONPATH) &&
                 strstr(*place, kept.site) != NULL)
            addition.pythonpath = *place + sizeof PYTHONPATH - 1;
        else
            continue;
        room += strlen(*place) + 1;
    }
    if (room > 0)
        addition.bytes = (addition.count + MAX_OWN + 3) * sizeof(char *) + room;
    return addition;
}

/* NAME=entries without one of them; NULL: no other is left. */
static char *write_others(char *place, const char *name, const char *entries, const char *without)
{
    char *end = stpcpy(place, name);
    int count = 0;
    for (const char *entry = entries;;
         entry++) { /* an empty entry of PYTHONPATH is the working directory */
        size_t length = strcspn(entry, ":");
        if (length != strlen(without) || memcmp(entry, without, length) != 0) {
            if (count++ > 0)
                *end++ = ':';
            end = mempcpy(end, entry, length);
        }
        entry += length;
        if (*entry == '\0')
            break;
    }
    *end = '\0';
    return count == 0 ? NULL : end + 1;
}

/* NAME=first:others */
static char *write_list(char *place, const char *name, const char *first, const char *others)
{
    place = stpcpy(stpcpy(place, name), first);
    if (others[0] != '\0')
        place = stpcpy(stpcpy(place, ":"), others);
    return place + 1;
}

char *const *extend_environment(const struct addition *addition, char *const *environment,
                                char *room)
{
    char **extended = (char **)(void *)room, **next = extended;
    char *text = room + (addition->count + MAX_OWN + 3) * sizeof(char *);
    for (size_t place = 0; place < addition->count; place++) {
        bool is_replaced =
            (addition->preload != NULL && starts_with(environment[place], PRELOAD)) ||
            (addition->pythonpath != NULL && starts_with(environment[place], PYTHONPATH));
        if (!is_replaced)
            *next++ = environment[place];
    }
    if (addition->removes) {
        char *end = addition->preload == NULL
                        ? NULL
                        : write_others(text, PRELOAD, addition->preload, kept.library);
        if (end != NULL)
            *next++ = text;
        text = end != NULL ? end : text;
        if (addition->pythonpath != NULL &&
            write_others(text, PYTHONPATH, addition->pythonpath, kept.site) != NULL)
            *next++ = text;
        *next = NULL;
        return extended;
    }
    for (int place = 0; place < kept.num_own; place++)
        if (!has_variable(environment, kept.own[place]))
            *next++ = (char *)(uintptr_t)kept.own[place];
    if (addition->preload != NULL) {
        *next++ = text;
        text = write_list(text, PRELOAD, kept.library, addition->preload);
    }
    if (addition->pythonpath != NULL) {
        *next++ = text;
        text = write_list(text, PYTHONPATH, kept.site, addition->pythonpath);
    }
    *next = NULL;
    return extended;
}
