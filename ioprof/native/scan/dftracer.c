#include "dftracer.h"

#include "json.h"

#define LATEST_NS ((INT64_C(1) << 61) - 1) /* as in dftracer_events.py */

typedef enum { TAKEN, LEFT, NO_MEMORY } Outcome;

/* Fields of an event, and those of its arguments; of others nothing is needed. ID and TYPE are in
 * most events. */
enum {
    EVENT_NAME,
    PHASE,
    CATEGORY,
    EVENT_PID,
    EVENT_TID,
    EVENT_TS,
    EVENT_DUR,
    ARGUMENTS,
    ID,
    TYPE,
    NUM_FIELDS
};
enum {
    RETURNED,
    AT_OFFSET,
    FILE_NAME,
    FILE_HASH,
    HOST_NAME,
    HOST_HASH,
    EXPLAINING_NAME,
    EXPLAINED_VALUE,
    NUM_ARGUMENTS
};

typedef struct {
    const char *key; /* with its closing quote, and zeros up to 16 bytes */
    unsigned size;
    unsigned kinds; /* allowed ones; 0: the arguments */
} Field;

enum { ANY_KIND = NULL_VALUE | WHOLE | DECIMAL | TEXT };

#define FIELD(key, kinds) {key "\"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", sizeof(key), kinds}

static const Field fields[] = {
    FIELD("name", TEXT),
    FIELD("ph", TEXT),
    FIELD("cat", TEXT),
    FIELD("pid", WHOLE | TEXT),
    FIELD("tid", WHOLE | TEXT),
    FIELD("ts", WHOLE | DECIMAL | TEXT),
    FIELD("dur", WHOLE | DECIMAL | TEXT),
    FIELD("args", 0),
    FIELD("id", ANY_KIND),
    FIELD("type", ANY_KIND),
};
static const Field arguments[] = {
    FIELD("ret", WHOLE | TEXT | NULL_VALUE),  FIELD("offset", WHOLE | TEXT | NULL_VALUE),
    FIELD("fname", TEXT | NULL_VALUE),        FIELD("fhash", WHOLE | TEXT | NULL_VALUE),
    FIELD("hostname", TEXT | NULL_VALUE),     FIELD("hhash", WHOLE | TEXT | NULL_VALUE),
    FIELD("name", WHOLE | TEXT | NULL_VALUE), FIELD("value", WHOLE | TEXT | NULL_VALUE),
};

typedef struct {
    Value of_event[NUM_FIELDS], of_arguments[NUM_ARGUMENTS];
    unsigned seen, seen_arguments; /* a value that was not seen is not initialised */
    const char *limit;             /* of the text that the event is in */
} Event;

typedef struct {
    const Field *known;
    unsigned num_known;
    Order *order;
    Value *values;
    unsigned *seen;
} Object;

/* ------------------------------------------------------------------------------ reading a line */

static inline bool is_key(const char *at, const char *end, const Field *field)
{
#ifdef __SSE2__
    if (end - at >= 16) {
        __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)at),
                                      _mm_loadu_si128((const __m128i *)field->key));
        unsigned wanted = (1u << field->size) - 1;
        return ((unsigned)_mm_movemask_epi8(same) & wanted) == wanted;
    }
#endif
    return (size_t)(end - at) >= field->size && memcmp(at, field->key, field->size) == 0;
}

/* After a key, at its closing quote, with the number of its field, which is `num_known` where it is
 * another; NULL: no plain key. */
static inline const char *after_known_key(const char *key, const char *end, const Object *object,
                                          unsigned place, unsigned *found)
{
    unsigned guess = object->order->fields[place % MOST_FIELDS];
    if (is_key(key, end, &object->known[guess])) {
        *found = guess;
        return key + object->known[guess].size;
    }
    const char *at = plain_end(key, end);
    if (!at++)
        return NULL;
    for (*found = 0; *found < object->num_known; ++*found) {
        if ((size_t)(at - key) == object->known[*found].size &&
            memcmp(key, object->known[*found].key, (size_t)(at - key)) == 0) {
            object->order->fields[place % MOST_FIELDS] = (unsigned char)*found;
            break;
        }
    }
    return at;
}

/* After a whole number or text of the size of the last one at this place; NULL: another value. It
   is checked at once, and the processor need not wait for the place at which it ends. */
static inline const char *after_likely(const char *at, const char *end, unsigned size, Value *value)
{
#ifdef __SSE2__
    if (end - at <= 17)
        return NULL;
    const unsigned wanted = (1u << size) - 1;
    if (*at == '"') {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(at + 1));
        __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                                    _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
        stop = _mm_or_si128(stop, _mm_cmplt_epi8(bytes, _mm_set1_epi8(' ')));
        if (((unsigned)_mm_movemask_epi8(stop) & wanted) || at[size + 1] != '"')
            return NULL;
        *value = (Value){at + 1, size, TEXT};
        return at + size + 2;
    }
    __m128i values = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)at), _mm_set1_epi8('0'));
    unsigned found =
        (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(values, _mm_set1_epi8(9)), values));
    if ((~found & wanted) || (at[size] != ',' && at[size] != '}') || (*at == '0' && size != 1))
        return NULL;
    *value = (Value){at, size, WHOLE};
    return at + size;
#else
    (void)at, (void)end, (void)size, (void)value;
    return NULL;
#endif
}

static const char *after_arguments(DFTracerScan *scan, const char *at, const char *end,
                                   Event *event);

/* After an object. Nothing may be in it twice, and no value be of a kind that is not allowed. */
static const char *after_object(DFTracerScan *scan, const char *at, const char *end,
                                const Object *object, Event *event)
{
    at = after_blank(at + 1, end);
    if (at < end && *at == '}')
        return at + 1;
    for (unsigned place = 0;; place++) {
        unsigned found;
        if (at == end || *at != '"' || !(at = after_known_key(at + 1, end, object, place, &found)))
            return NULL;
        if (!(at = after_sign(at, end, ':')))
            return NULL;
        if (found == object->num_known) {
            at = after_any(at, end, 1);
        } else {
            if (*object->seen & 1u << found)
                return NULL;
            *object->seen |= 1u << found;
            unsigned kinds = object->known[found].kinds;
            unsigned char *likely = &object->order->sizes[place % MOST_FIELDS];
            Value *value = &object->values[found];
            if (kinds) {
                const char *after = *likely ? after_likely(at, end, *likely, value) : NULL;
                if (!after && (after = after_scalar(at, end, value))) {
                    *likely = value->kind & (WHOLE | TEXT) && value->size <= 16
                                  ? (unsigned char)value->size
                                  : 0;
                }
                if (!(at = after) || !(value->kind & kinds))
                    return NULL;
            } else {
                at = after_arguments(scan, at, end, event);
            }
        }
        if (!at)
            return NULL;
        if (at < end && *at != ',')
            at = after_blank(at, end);
        if (at < end && *at == '}')
            return at + 1;
        if (!(at = after_sign(at, end, ',')))
            return NULL;
    }
}

static const char *after_arguments(DFTracerScan *scan, const char *at, const char *end,
                                   Event *event)
{
    const Object object = {arguments, NUM_ARGUMENTS, &scan->order_of_arguments, event->of_arguments,
                           &event->seen_arguments};
    return at < end && *at == '{' ? after_object(scan, at, end, &object, event)
                                  : AFTER(at, end, "null");
}

/* -------------------------------------------------------------------------------------- values */

static const Value *value_of(const Event *event, unsigned field)
{
    return event->seen & 1u << field ? &event->of_event[field] : NULL;
}

/* NULL also where it is null. */
static const Value *argument_of(const Event *event, unsigned argument)
{
    const Value *value = &event->of_arguments[argument];
    return event->seen_arguments & 1u << argument && value->kind != NULL_VALUE ? value : NULL;
}

/* A whole number, also one in a text; false: it is for Python to decide. Something else than a
 * digit follows it before `limit`. */
static bool read_whole(const Value *value, const char *limit, int64_t missing, int64_t *number)
{
    *number = missing;
    if (!value)
        return true;
    const char *at = value->text, *end = at + value->size;
    bool is_negative = at < end && *at == '-';
    if (after_digits(at + is_negative, limit, number) != end)
        return false;
    if (is_negative)
        *number = -*number;
    return true;
}

/* Microseconds as nanoseconds, rounded half to even; NONE: not a possible time; false: for Python
 * to decide. */
static bool read_time(const Value *value, const char *limit, int64_t *nanoseconds)
{
    *nanoseconds = 0;
    if (!value)
        return true;
    const char *at = value->text, *end = at + value->size;
    int64_t whole, thousandths = 0;
    if (!(at = after_digits(at, limit, &whole)))
        return false;
    if (at < end) {
        if (*at++ != '.' || at == end || after_all_digits(at, end) != end)
            return false;
        for (int64_t worth = 100; worth && at < end; worth /= 10)
            thousandths += worth * (*at++ - '0');
        if (at < end) {
            bool is_half = *at == '5';
            bool is_above = *at > '5';
            while (is_half && !is_above && ++at < end)
                is_above = *at != '0';
            thousandths += is_above || (is_half && thousandths % 2);
        }
    }
    bool is_possible = whole <= LATEST_NS / 1000 && whole * 1000 + thousandths <= LATEST_NS;
    *nanoseconds = is_possible ? whole * 1000 + thousandths : NONE;
    return true;
}

/* Twice the number of a name, or, where there is none, of a hash plus 1; NONE: neither. False: no
 * memory. */
static bool read_name(DFTracerScan *scan, const Value *name, const Value *hash, int64_t *number)
{
    if (!name && !hash)
        return true;
    int64_t found = name ? number_of(&scan->names, name->text, name->size)
                         : number_of(&scan->hashes, hash->text, hash->size);
    *number = found * 2 + !name;
    return found >= 0;
}

static bool is_text(const Value *value, const char *text)
{
    return value && value->size == strlen(text) && memcmp(value->text, text, value->size) == 0;
}

/* -------------------------------------------------------------------------------------- events */

/* The number of a call. */
static Outcome read_call(DFTracerScan *scan, const Value *category, const Value *name,
                         int64_t *call)
{
    char key[512];
    size_t before = category ? category->size : 0, size = before + 1 + name->size, stored;
    size_t place = (name->size * 4 + (name->size ? (unsigned char)name->text[name->size - 1] : 0)) %
                   NUM_LIKELY;
    *call = scan->likely_calls[place];
    if ((size_t)*call < scan->calls.count) {
        const char *known = string_at(&scan->calls, (size_t)*call, &stored);
        if (stored == size && !known[before] &&
            (!before || is_same(known, category->text, before)) &&
            is_same(known + before + 1, name->text, name->size)) {
            return TAKEN;
        }
    }
    if (size > sizeof(key))
        return LEFT;
    if (category)
        memcpy(key, category->text, category->size);
    key[before] = 0;
    memcpy(key + before + 1, name->text, name->size);
    if ((*call = number_of(&scan->calls, key, size)) < 0)
        return NO_MEMORY;
    scan->likely_calls[place] = *call;
    if ((size_t)*call == scan->uses.rows) {
        int64_t *cells = next_row(&scan->uses);
        if (!cells)
            return NO_MEMORY;
        cells[USE_COUNT] = 0;
        cells[USE_IS_KEPT] = !category ||
                             !is_one_of(scan->system_calls, category->text, category->size) ||
                             is_one_of(scan->kept, name->text, name->size);
        scan->uses.rows++;
    }
    return TAKEN;
}

/* What a hash stands for, from an event of metadata. */
static Outcome explain(DFTracerScan *scan, const Event *event)
{
    bool is_path = is_text(value_of(event, EVENT_NAME), "FH");
    const Value *hash = argument_of(event, EXPLAINED_VALUE),
                *name = argument_of(event, EXPLAINING_NAME);
    if (!hash || (!is_path && !is_text(value_of(event, EVENT_NAME), "HH")))
        return TAKEN;
    if (!name)
        return LEFT;
    int64_t *cells = next_row(&scan->explained);
    if (!cells)
        return NO_MEMORY;
    cells[EXPLAINED_AT] = scan->num_lines;
    cells[EXPLAINED_IS_PATH] = is_path;
    if ((cells[EXPLAINED_HASH] = number_of(&scan->hashes, hash->text, hash->size)) < 0)
        return NO_MEMORY;
    if ((cells[EXPLAINED_NAME] = number_of(&scan->names, name->text, name->size)) < 0)
        return NO_MEMORY;
    scan->explained.rows++;
    return TAKEN;
}

static Outcome add_event(DFTracerScan *scan, const Event *event)
{
    int64_t row[EVENT_COLUMNS] = {[EVENT_AT] = scan->num_lines, [HOST] = NONE, [PATH] = NONE};
    Outcome outcome =
        read_call(scan, value_of(event, CATEGORY), value_of(event, EVENT_NAME), &row[CALL]);
    if (outcome != TAKEN)
        return outcome;
    int64_t *use = scan->uses.cells + (size_t)row[CALL] * scan->uses.columns;
    if (use[USE_IS_KEPT]) {
        const char *limit = event->limit;
        if (!read_time(value_of(event, EVENT_TS), limit, &row[START_NS]) ||
            !read_time(value_of(event, EVENT_DUR), limit, &row[LENGTH_NS]) ||
            !read_whole(value_of(event, EVENT_PID), limit, 0, &row[PID]) ||
            !read_whole(value_of(event, EVENT_TID), limit, 0, &row[TID]) ||
            !read_whole(argument_of(event, RETURNED), limit, NONE, &row[RET]) ||
            !read_whole(argument_of(event, AT_OFFSET), limit, NONE, &row[OFFSET])) {
            return LEFT;
        }
        if (!reserve_rows(&scan->events, 1) ||
            !read_name(scan, argument_of(event, HOST_NAME), argument_of(event, HOST_HASH),
                       &row[HOST]) ||
            !read_name(scan, argument_of(event, FILE_NAME), argument_of(event, FILE_HASH),
                       &row[PATH])) {
            return NO_MEMORY;
        }
        for (size_t column = 0; column < EVENT_COLUMNS; column++)
            column_of(&scan->events, column)[scan->events.rows] = row[column];
        scan->events.rows++;
    }
    use[USE_COUNT]++;
    return TAKEN;
}

static Outcome take_event(DFTracerScan *scan, const Event *event)
{
    const unsigned needed = 1u << EVENT_NAME | 1u << PHASE;
    if ((event->seen & needed) != needed)
        return LEFT;
    Outcome outcome = TAKEN;
    if (is_text(value_of(event, PHASE), "M")) {
        outcome = explain(scan, event);
    } else if (is_text(value_of(event, PHASE), "X") &&
               !is_text(value_of(event, CATEGORY), "dftracer")) {
        outcome = add_event(scan, event);
    }
    if (outcome == TAKEN)
        scan->num_events++;
    return outcome;
}

/* --------------------------------------------------------------------------------------- lines */

static inline const char *after_around(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == ','))
        at++;
    return at;
}

/* Whether an object that ends at a place is the last in its line, which then ends at `next`. */
static bool ends_line(const char *at, const char *limit, const char **next)
{
    *next = after_around(at, limit);
    return *next == limit || **next == '\n';
}

bool scan_dftracer(DFTracerScan *scan, const char *text, size_t size)
{
    const char *limit = text + size, *next;
    scan->left.rows = 0;
    for (const char *at = text; at < limit; at = next < limit ? next + 1 : limit) {
        /* No string that is taken has a line end in it, so the end of the line need not be known
         * before. */
        const char *start = after_around(at, limit), *after;
        Outcome outcome = LEFT;
        if (start < limit && *start == '{') {
            Event event;
            event.seen = event.seen_arguments = 0;
            event.limit = limit;
            const Object object = {fields, NUM_FIELDS, &scan->order, event.of_event, &event.seen};
            after = after_object(scan, start, limit, &object, &event);
            if (after && ends_line(after, limit, &next))
                outcome = take_event(scan, &event);
        } else if (start == limit || *start == '\n' || *start == '[' || *start == ']') {
            bool is_bracket = start < limit && *start != '\n';
            if (ends_line(start + is_bracket, limit, &next))
                continue;
        }
        if (outcome == NO_MEMORY)
            return false;
        if (outcome == LEFT) {
            next = memchr(at, '\n', (size_t)(limit - at));
            if (!next)
                next = limit;
            int64_t *cells = next_row(&scan->left);
            if (!cells)
                return false;
            cells[LINE_AT] = scan->num_lines;
            cells[LINE_START] = at - text;
            cells[LINE_END] = next - text;
            scan->left.rows++;
        }
        scan->num_lines++;
    }
    return true;
}
