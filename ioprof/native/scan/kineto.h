/* Events of a Kineto file. What is not in the usual form is left to the parser in Python, which
 * says what it is. */

#ifndef IOPROF_SCAN_KINETO_H
#define IOPROF_SCAN_KINETO_H

#include "tables.h"
#include "words.h"

/* Columns of the tables; the order of ioprof/ingest/kineto/events.py. */
enum {
    AT,
    CATEGORY,
    NAME,
    DEVICE,
    STREAM,
    TS,
    DUR,
    CORRELATION,
    BYTES,
    COLLECTIVE,
    ELEMENTS,
    DTYPE,
    GROUP,
    ACTIVITY_COLUMNS
};
enum {
    LAUNCH_AT,
    LAUNCH_NAME,
    LAUNCH_THREAD,
    LAUNCH_TS,
    LAUNCH_DUR,
    LAUNCH_CORRELATION,
    LAUNCH_COLUMNS
};
enum { LEFT_AT, LEFT_START, LEFT_END, LEFT_COLUMNS };

typedef struct {
    const Word *activities, *launches, *host, *ranges; /* each ends with a word without text */
    Table of_device, of_launches, left;                /* `left`: events for the parser in Python */
    Strings strings;
    int64_t num_events;
} KinetoScan;

/* Whether "ph" is at a place of the text. */
bool begins_event(const char *text, size_t begin, size_t size);

/* Scans the events in [text + begin, text + size), each of which begins with "ph", also the first;
   with `is_whole` the last one too. Sets where the last one begins; false: no memory. */
bool scan_kineto(KinetoScan *scan, const char *text, size_t begin, size_t size, bool is_whole,
                 size_t *last);

#endif
