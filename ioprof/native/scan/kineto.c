#include "kineto.h"

#include "text.h"

#define MARK "\"ph\""
#define LATEST_US ((INT64_C(1) << 62) / 1000) /* as in untrusted_values.py */

enum {
    MARK_BYTES = sizeof(MARK) - 1,
    MOST_BEFORE_X = 13 * 4
}; /* 13 characters, of at most 4 bytes each */

typedef enum { SKIPPED, TAKEN, LEFT, NO_MEMORY } Outcome;

/* After `, "key": ` with any white space; NULL: it is not there. */
static const char *after_key(const char *at, const char *end, const char *key, size_t size)
{
    at = after_space(at, end);
    if (at == end || *at++ != ',')
        return NULL;
    if (!(at = after_text(after_space(at, end), end, key, size)))
        return NULL;
    at = after_space(at, end);
    return at < end && *at == ':' ? after_space(at + 1, end) : NULL;
}

#define AFTER_KEY(at, end, key) after_key(at, end, "\"" key "\"", sizeof(key) + 1)

/* The end of a string, at its closing quote; NULL: none, or a backslash before a line end or the
 * end. */
static const char *string_end(const char *at, const char *end)
{
    for (; at < end && *at != '"'; at++) {
        if (*at != '\\')
            continue;
        if (++at == end || *at == '\n')
            return NULL;
    }
    return at < end ? at : NULL;
}

/* A number that may have a quote behind it. */
static const char *after_number(const char *at, const char *end, int64_t *value)
{
    bool is_negative = at < end && *at == '-';
    if (!(at = after_digits(at + is_negative, end, value)))
        return NULL;
    if (is_negative)
        *value = -*value;
    return at < end && *at == '"' ? at + 1 : at;
}

/* A number that may have quotes. */
static const char *after_whole(const char *at, const char *end, int64_t *value)
{
    return after_number(at < end && *at == '"' ? at + 1 : at, end, value);
}

/* The number of a thread or stream; torch 1.8 wrote "stream 7". */
static const char *after_track(const char *at, const char *end, int64_t *value)
{
    const char *number = AFTER(at, end, "\"stream ");
    return number ? after_number(number, end, value) : after_whole(at, end, value);
}

/* Microseconds as nanoseconds, of which the fourth decimal and later ones are cut off; NONE: not a
 * possible time. */
static const char *after_time(const char *at, const char *end, int64_t *nanoseconds)
{
    if (at < end && *at == '"')
        at++;
    bool is_negative = at < end && *at == '-';
    int64_t whole, thousandths = 0;
    if (!(at = after_digits(at + is_negative, end, &whole)))
        return NULL;
    if (at < end && *at == '.') {
        at++;
        for (int64_t worth = 100; at < end && *at >= '0' && *at <= '9'; at++, worth /= 10)
            thousandths += worth * (*at - '0');
    }
    *nanoseconds = is_negative || whole > LATEST_US ? NONE : whole * 1000 + thousandths;
    return at < end && *at == '"' ? at + 1 : at;
}

/* A number of an argument, `"key": 5` or `"key": "5"`, after its key; only ASCII follows. */
static void read_argument(const char *at, const char *end, int64_t most_digits, int64_t *value)
{
    at = after_space(at, end);
    if (at < end && *at == ':') {
        at = after_space(at + 1, end);
        if (at < end && *at == '"')
            at++;
        const char *start = at;
        int64_t number;
        if ((at = after_digits(at, end, &number))) {
            bool is_word = at < end &&
                           ((*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z') || *at == '_');
            if (!is_word && at - start <= most_digits)
                *value = number;
        }
    }
}

/* A text of an argument without escapes, after its key. */
static bool read_text(KinetoScan *scan, const char *at, const char *end, int64_t *value)
{
    at = after_space(at, end);
    if (at == end || *at != ':')
        return true;
    at = after_space(at + 1, end);
    if (at == end || *at != '"')
        return true;
    const char *start = ++at;
    while (at < end && *at != '"' && *at != '\\')
        at++;
    if (at == end || *at != '"' || at == start)
        return true;
    return (*value = number_of(&scan->strings, start, (size_t)(at - start))) >= 0;
}

typedef struct {
    const char *key; /* with its closing quote */
    size_t size;
    int column;
    int most_digits; /* 0: a text */
    bool of_launch;
} Argument;

#define ARGUMENT(name, column, most_digits, of_launch) \
    {name "\"", sizeof(name), column, most_digits, of_launch}

static const Argument arguments[] = {
    ARGUMENT("correlation", CORRELATION, 18, true),
    ARGUMENT("bytes", BYTES, 18, false),
    ARGUMENT("Collective name", COLLECTIVE, 0, false),
    ARGUMENT("In msg nelems", ELEMENTS, 15, false),
    ARGUMENT("dtype", DTYPE, 0, false),
    ARGUMENT("Process Group Name", GROUP, 0, false),
};

static const Argument *argument_of(char first)
{
    switch (first) {
    case 'c':
        return &arguments[0];
    case 'b':
        return &arguments[1];
    case 'C':
        return &arguments[2];
    case 'I':
        return &arguments[3];
    case 'd':
        return &arguments[4];
    case 'P':
        return &arguments[5];
    default:
        return NULL;
    }
}

/* The arguments of an event, wherever they are after its times; the first of a name that can be
 * read counts. */
static Outcome read_arguments(KinetoScan *scan, const char *at, const char *end, bool is_launch,
                              int64_t *row)
{
    if (!is_ascii(at, end))
        return LEFT; /* white space and digits of Unicode */
    while (at < end && (at = memchr(at, '"', (size_t)(end - at))) && ++at < end) {
        const Argument *argument = argument_of(*at);
        if (!argument || row[argument->column] != NONE || (is_launch && !argument->of_launch))
            continue;
        const char *after = after_text(at, end, argument->key, argument->size);
        if (!after)
            continue;
        if (argument->most_digits) {
            read_argument(after, end, argument->most_digits, &row[argument->column]);
        } else if (!read_text(scan, after, end, &row[argument->column])) {
            return NO_MEMORY;
        }
    }
    if (row[CORRELATION] == 0)
        row[CORRELATION] = NONE;
    return TAKEN;
}

/* An activity or a launch, from its name; any other order of fields is left. */
static Outcome scan_activity(KinetoScan *scan, const char *category, size_t category_size,
                             const char *at, const char *end)
{
    const char *name, *name_end;
    int64_t row[ACTIVITY_COLUMNS];
    for (int column = 0; column < ACTIVITY_COLUMNS; column++)
        row[column] = NONE;
    if (!(at = AFTER_KEY(at, end, "name")) || at == end || *at != '"')
        return LEFT;
    name = at + 1;
    if (!(name_end = string_end(name, end)))
        return LEFT;
    if (!(at = AFTER_KEY(name_end + 1, end, "pid")) || !(at = after_whole(at, end, &row[DEVICE])))
        return LEFT;
    if (!(at = AFTER_KEY(at, end, "tid")) || !(at = after_track(at, end, &row[STREAM])))
        return LEFT;
    if (!(at = AFTER_KEY(at, end, "ts")) || !(at = after_time(at, end, &row[TS])))
        return LEFT;
    if (!(at = AFTER_KEY(at, end, "dur")) || !(at = after_time(at, end, &row[DUR])))
        return LEFT;
    at = after_space(at, end);
    if (at == end || (*at != ',' && *at != '}'))
        return LEFT;
    bool is_launch = is_one_of(scan->launches, category, category_size);
    Outcome outcome = read_arguments(scan, at, end, is_launch, row);
    if (outcome != TAKEN)
        return outcome;
    Table *table = is_launch ? &scan->of_launches : &scan->of_device;
    int64_t *cells = next_row(table);
    if (!cells || (row[NAME] = number_of(&scan->strings, name, (size_t)(name_end - name))) < 0)
        return NO_MEMORY;
    row[AT] = scan->num_events;
    if (is_launch) {
        cells[LAUNCH_AT] = row[AT];
        cells[LAUNCH_NAME] = row[NAME];
        cells[LAUNCH_THREAD] = row[STREAM];
        cells[LAUNCH_TS] = row[TS];
        cells[LAUNCH_DUR] = row[DUR];
        cells[LAUNCH_CORRELATION] = row[CORRELATION];
    } else {
        if ((row[CATEGORY] = number_of(&scan->strings, category, category_size)) < 0)
            return NO_MEMORY;
        memcpy(cells, row, sizeof(row));
    }
    table->rows++;
    return TAKEN;
}

/* Whether an event of the host is one of the ranges that are asked for. They are few, and left to
 * the parser in Python. */
static Outcome scan_host(const KinetoScan *scan, const char *at, const char *end)
{
    static const char key[] = "\"name\"";
    if (!scan->ranges->text)
        return SKIPPED;
    while ((at = find_text(at, end, key, sizeof(key) - 1))) {
        const char *value = after_space(at + sizeof(key) - 1, end);
        at += sizeof(key) - 2; /* its closing quote may open the next one, where it is damaged */
        if (value < end && *value == ':')
            value = after_space(value + 1, end);
        if (value < end && *value & 0x80)
            return LEFT; /* perhaps white space of Unicode */
        if (value == end || *value != '"')
            continue;
        value++;
        for (const Word *range = scan->ranges; range->text; range++) {
            if (after_text(value, end, range->text, range->size))
                return LEFT;
        }
    }
    return SKIPPED;
}

/* An event, after its "ph". */
static Outcome scan_event(KinetoScan *scan, const char *at, const char *end)
{
    const char *start = at, *category;
    at = after_space(at, end);
    if (at < end && *at == ':' && (at = AFTER(after_space(at + 1, end), end, "\"X\"")) &&
        (at = AFTER_KEY(at, end, "cat")) && at < end && *at == '"') {
        category = ++at;
        while (at < end && *at != '"' && *at != '\\')
            at++;
        if (at < end && *at == '"') {
            size_t size = (size_t)(at - category);
            if (is_one_of(scan->activities, category, size))
                return scan_activity(scan, category, size, at + 1, end);
            return is_one_of(scan->host, category, size) ? scan_host(scan, start, end) : SKIPPED;
        }
    }
    for (at = start; at < end && *at && strchr(" \t\n\v\f\r:\",Xcat", *at);)
        at++;
    if (at < end && *at & 0x80)
        return LEFT; /* perhaps white space of Unicode */
    const char *near = end - start > MOST_BEFORE_X + 3 ? start + MOST_BEFORE_X + 3 : end;
    return find_text(start, near, "\"X\"", 3) ? LEFT : SKIPPED;
}

bool begins_event(const char *text, size_t begin, size_t size)
{
    return begin <= size && AFTER(text + begin, text + size, MARK);
}

bool scan_kineto(KinetoScan *scan, const char *text, size_t begin, size_t size, bool is_whole,
                 size_t *last)
{
    const char *limit = text + size, *at = text + begin;
    scan->left.rows = 0;
    *last = size;
    while (at < limit) {
        *last = (size_t)(at - text);
        const char *next = find_text(at + MARK_BYTES, limit, MARK, MARK_BYTES);
        if (!next && !is_whole)
            break;
        const char *end = next ? next : limit;
        Outcome outcome = scan_event(scan, at + MARK_BYTES, end);
        if (outcome == LEFT) {
            int64_t *cells = next_row(&scan->left);
            if (!cells)
                return false;
            cells[LEFT_AT] = scan->num_events;
            cells[LEFT_START] = at + MARK_BYTES - text;
            cells[LEFT_END] = end - text;
            scan->left.rows++;
        }
        if (outcome == NO_MEMORY)
            return false;
        scan->num_events++;
        at = end;
    }
    return true;
}
