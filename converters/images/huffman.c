/* The Huffman codes of a baseline JPEG (ITU T.81, annex F), which are most of what its decoding
 * costs.
 *
 * libjpeg calls `decode_mcu` of its entropy decoder for each MCU, the blocks of which it then
 * transforms. Here that is this file's. It differs in three ways: the bytes of a scan are copied
 * first, without the zeros that follow 0xFF, so that the bits are read eight bytes at a time; one
 * look-up gives up to two codes and the values behind them; and where coefficients are not wanted,
 * one look-up passes over several of them. Only the differences of the DC coefficients are then
 * added up, since a later block needs their sum.
 *
 * Data that an encoder would not write is left to libjpeg, which warns about it or not: a code that
 * is none, more coefficients than a block has, a scan that is longer or shorter than its MCUs. */

#include <stdlib.h>
#include <string.h>

#include "huffman.h"

#define LOOKUP 11 /* bits of a look-up */
#define ENTRIES (1 << LOOKUP)
#define LONGEST 16 /* bits of a code */
#define TABLES 4
#define BLOCKS 10    /* of an MCU */
#define PADDING 4096 /* zeros after a segment: more than one MCU can take */
#define LAST 63      /* coefficient of a block */

/* What a look-up of one code finds, 32 bits: the number of bits of code and value, the zeros before
 * the value, and the value itself. An end of block has 64 zeros before it. What does not fit into
 * the look-up has no bits, and more zeros than a block. */
#define BITS(entry) ((entry) & 0xff)
#define ZEROS(entry) ((entry) >> 8 & 0xff)
#define VALUE(entry) ((int16_t)((entry) >> 16))
#define END_ZEROS 64
#define NO_FIT (128u << 8)

/* What one of up to two codes of AC coefficients finds, 32 bits: the bits of both; how many
 * coefficients they are, the last of which is the second value; the zeros before the first value;
 * both values. Of one code the second value is 0, and is written first, to the same place. To the
 * number of coefficients 64 are added where the block ends with them. No code that fits: no bits.
 */
#define PAIR_BITS(entry) ((entry) & 0xf)
#define PAIRED(entry) ((entry) >> 4 & 0x7f)
#define PAIR_ZEROS(entry) ((entry) >> 11 & 0xf)
#define FIRST_VALUE(entry) ((int32_t)((entry) << 7) >> 22)
#define SECOND_VALUE(entry) ((int32_t)(entry) >> 25)
#define END_OF_PAIR 64
#define NO_PAIR (127 << 4)

/* What one of several codes finds, 16 bits: the bits of all, and how many coefficients they are, to
 * which 128 are added where the block ends with them. No code that fits: as many coefficients as no
 * block has. */
#define SKIPPED_BITS(entry) ((entry) & 0xf)
#define SKIPPED(entry) ((entry) >> 4)
#define END_OF_SKIPPED 128
#define HAS_ENDED (END_OF_SKIPPED << 4)
#define NO_SKIP (127 << 4)

struct table {
    uint32_t one[ENTRIES];
    uint16_t codes[ENTRIES]; /* length and symbol; 0: the code is longer than a look-up */
    uint32_t pairs[ENTRIES];
    uint16_t many[ENTRIES];
    int32_t end[LONGEST + 2]; /* of the codes of each length, as the first bits of `LONGEST`: those
                                 below it are no longer */
    int32_t offset[LONGEST + 1]; /* of the values of each length, from their code */
    const uint8_t *values;
    int is_made, is_complete;
};

struct block {
    const struct table *dc, *ac;
    int component;
    int is_flat; /* whether only its DC coefficient counts */
};

struct scan {
    void (*give_up)(struct decoder *);
    uint64_t bits; /* see `reader` */
    int num_bits;
    const uint8_t *next, *end; /* of the segment's bytes; `next` may be beyond */
    uint8_t *bytes;
    int sums[TABLES]; /* of DC differences, by component */
    uint32_t column, row, first, wanted_end;
    unsigned until_restart;
    int restart;
    struct block blocks[BLOCKS];
    struct table dc[TABLES], ac[TABLES];
};

static const uint8_t NATURAL[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* -------------------------------------------------------------------------------------- tables */

/* The value of `size` bits (F.2.2.1, EXTEND). */
static inline int extended(int bits, int size)
{
    return bits < 1 << size >> 1 ? bits - (1 << size) + 1 : bits;
}

/* The entries whose first `length` bits are `code`. */
static void fill(struct table *table, int code, int length, int symbol, int is_ac)
{
    int size = symbol & 15, zeros = symbol >> 4, left = LOOKUP - length;
    if (is_ac && !symbol)
        zeros = END_ZEROS;
    for (int i = 0; i < 1 << left; i++)
        table->codes[(code << left) + i] = (uint16_t)(length | symbol << 8);
    if (size > left)
        return;
    uint32_t *entry = table->one + (code << left);
    for (int value = 0; value < 1 << size; value++)
        for (int i = 0; i < 1 << (left - size); i++)
            *entry++ = (uint32_t)(length + size) | (uint32_t)zeros << 8 |
                       (uint32_t)(uint16_t)extended(value, size) << 16;
}

/* False where the table is not one that an encoder makes. */
static int make_table(struct table *table, const struct huffman *from, int is_ac)
{
    int code = 0, place = 0;
    if (!from)
        return 0;
    if (table->is_made)
        return 1;
    for (int i = 0; i < ENTRIES; i++)
        table->one[i] = NO_FIT;
    for (int length = 1; length <= LONGEST; length++) {
        int count = from->bits[length];
        if (place + count > 256 || code + count > 1 << length)
            return 0;
        table->offset[length] = place - code;
        for (int i = 0; i < count; i++, place++, code++) {
            int symbol = from->values[place];
            if (is_ac ? (symbol & 15) > 10 || (!(symbol & 15) && symbol && symbol != 0xf0)
                      : symbol > 11)
                return 0;
            if (length <= LOOKUP)
                fill(table, code, length, symbol, is_ac);
        }
        table->end[length] = code << (LONGEST - length);
        code <<= 1;
    }
    table->end[LONGEST + 1] = 1 << LONGEST;
    table->values = from->values;
    table->is_made = 1;
    return 1;
}

static uint32_t pair_of(const struct table *table, int index)
{
    int num_bits = 0, count = 0, zeros = 0, values[2] = {0, 0};
    for (int i = 0; i < 3; i++) {
        uint32_t entry = table->one[index << num_bits & (ENTRIES - 1)];
        int is_end = ZEROS(entry) == END_ZEROS, limit = i ? 64 : 512;
        if (!BITS(entry) || num_bits + (int)BITS(entry) > LOOKUP)
            break;
        if (!is_end && (i == 2 || VALUE(entry) <= -limit || VALUE(entry) >= limit))
            break;
        num_bits += BITS(entry);
        if (is_end) {
            count += END_OF_PAIR;
            break;
        }
        values[i] = VALUE(entry);
        zeros = i ? zeros : (int)ZEROS(entry);
        count += ZEROS(entry) + 1;
    }
    if (!num_bits)
        return NO_PAIR;
    uint32_t both = ((uint32_t)values[0] & 0x3ff) << 15 | (uint32_t)values[1] << 25;
    return (uint32_t)num_bits | (uint32_t)count << 4 | (uint32_t)zeros << 11 | both;
}

static void make_pairs(struct table *table)
{
    for (int index = 0; index < ENTRIES; index++)
        table->pairs[index] = pair_of(table, index);
}

static void make_skips(struct table *table)
{
    for (int index = 0; index < ENTRIES; index++) {
        int num_bits = 0, count = 0, ended = 0;
        while (!ended && num_bits < LOOKUP) {
            uint32_t entry = table->one[index << num_bits & (ENTRIES - 1)];
            if (!BITS(entry) || num_bits + (int)BITS(entry) > LOOKUP ||
                count + (int)ZEROS(entry) >= END_OF_SKIPPED - 1)
                break;
            num_bits += BITS(entry);
            ended = ZEROS(entry) == END_ZEROS;
            count += ended ? 1 : ZEROS(entry) + 1;
        }
        table->many[index] =
            (uint16_t)(num_bits ? num_bits | count << 4 | (ended ? HAS_ENDED : 0) : NO_SKIP);
    }
    table->is_complete = 1;
}

/* -------------------------------------------------------------------------------------- blocks */

/* The bits of a scan. In the functions below they are in registers: their addresses must not be
 * taken there, which would double what a look-up costs. */
struct reader {
    uint64_t bits; /* the next ones, from the highest on */
    int count;
    const uint8_t *next;
};

static inline uint64_t eight_bytes(const uint8_t *bytes)
{
    uint64_t found;
    memcpy(&found, bytes, sizeof found);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    found = __builtin_bswap64(found);
#endif
    return found;
}

#define FILLED                                                                                   \
    56 /* bits that there are then at least, which are those of five look-ups, or of a long code \
          and its value */
#define FILL_UP                                                  \
    do {                                                         \
        reader.bits |= eight_bytes(reader.next) >> reader.count; \
        reader.next += (63 - reader.count) >> 3;                 \
        reader.count |= FILLED;                                  \
    } while (0)

#define DROP(number)              \
    do {                          \
        reader.bits <<= (number); \
        reader.count -= (number); \
    } while (0)

#define INDEX (reader.bits >> (64 - LOOKUP))

/* Sets `symbol` to that of any code, and drops the code; -1: there is no such code. */
#define LONG_SYMBOL(table)                                                                         \
    do {                                                                                           \
        int length_ = (table)->codes[INDEX] & 0xff, first_ = (int)(reader.bits >> (64 - LONGEST)); \
        symbol = (table)->codes[INDEX] >> 8;                                                       \
        if (!length_) {                                                                            \
            for (length_ = LOOKUP + 1; length_ <= LONGEST && first_ >= (table)->end[length_];)     \
                length_++;                                                                         \
            symbol =                                                                               \
                length_ > LONGEST                                                                  \
                    ? -1                                                                           \
                    : (table)->values[(first_ >> (LONGEST - length_)) + (table)->offset[length_]]; \
        }                                                                                          \
        DROP(length_);                                                                             \
    } while (0)

/* Sets `value` to that of the next `size` bits, and drops them. */
#define VALUE_OF(size)                                                            \
    do {                                                                          \
        value = (size) ? extended((int)(reader.bits >> (64 - (size))), size) : 0; \
        DROP(size);                                                               \
    } while (0)

/* The DC coefficient, as a difference from the last; false: there is no such code. */
static inline int read_difference(struct reader *from, const struct table *table, int *difference)
{
    struct reader reader = *from;
    int symbol, value;
    FILL_UP;
    uint32_t entry = table->one[INDEX];
    if (__builtin_expect(BITS(entry) != 0, 1)) {
        DROP(BITS(entry));
        value = VALUE(entry);
    } else {
        LONG_SYMBOL(table);
        if (symbol < 0)
            return 0;
        VALUE_OF(symbol);
    }
    *difference = value;
    *from = reader;
    return 1;
}

/* The others of a block; false: there is no such code, or they are too many. */
static inline int read_block(struct reader *from, const struct table *table, int16_t *block)
{
    struct reader reader = *from;
    int place = 1, symbol, value;
    while (place <= LAST) {
        FILL_UP;
        for (int i = 0; i < FILLED / LOOKUP; i++) {
            uint32_t entry = table->pairs[INDEX];
            int after = place + (int)PAIRED(entry);
            if (__builtin_expect(after > LAST, 0)) {
                int is_end = after > LAST + 1, count = (int)PAIRED(entry) & (END_OF_PAIR - 1);
                if (PAIR_BITS(entry) &&
                    (is_end ? PAIRED(entry) >= END_OF_PAIR && place + count <= LAST : 1)) {
                    if (count) {
                        block[NATURAL[place + count - 1]] = (int16_t)SECOND_VALUE(entry);
                        block[NATURAL[place + (int)PAIR_ZEROS(entry)]] =
                            (int16_t)FIRST_VALUE(entry);
                    }
                    DROP(PAIR_BITS(entry));
                    *from = reader;
                    return 1;
                }
                FILL_UP;
                LONG_SYMBOL(table);
                place += symbol >> 4;
                if (symbol <= 0 || place > LAST) {
                    *from = reader;
                    return !symbol;
                }
                VALUE_OF(symbol & 15);
                block[NATURAL[place++]] = (int16_t)value;
                break;
            }
            DROP(PAIR_BITS(entry));
            block[NATURAL[after - 1]] = (int16_t)SECOND_VALUE(entry);
            block[NATURAL[place + (int)PAIR_ZEROS(entry)]] = (int16_t)FIRST_VALUE(entry);
            place = after;
        }
    }
    *from = reader;
    return 1;
}

/* The same without their values. */
static inline int skip_block(struct reader *from, const struct table *table)
{
    struct reader reader = *from;
    int place = 1, symbol;
    while (place <= LAST) {
        FILL_UP;
        for (int i = 0; i < FILLED / LOOKUP; i++) {
            unsigned entry = table->many[INDEX];
            int after = place + (int)SKIPPED(entry);
            if (__builtin_expect(after > LAST, 0)) {
                if (after == LAST + 1 ||
                    (entry & HAS_ENDED && after <= LAST + 1 + END_OF_SKIPPED)) {
                    DROP(SKIPPED_BITS(entry));
                    *from = reader;
                    return 1;
                }
                FILL_UP;
                LONG_SYMBOL(table);
                place += symbol >> 4;
                if (symbol <= 0 || place > LAST) {
                    *from = reader;
                    return !symbol;
                }
                DROP(symbol & 15);
                place++;
                break;
            }
            DROP(SKIPPED_BITS(entry));
            place = after;
        }
    }
    *from = reader;
    return 1;
}

/* -------------------------------------------------------------------------------------- a scan */

/* Copies what is between here and the next marker; false where there is none, or it has fill bytes:
 * libjpeg looks behind them, and may find the end of the data, or that 0xFF is data. */
static int begin_segment(struct scan *scan, struct source *source)
{
    const uint8_t *from = source->next, *end = from + source->left;
    uint8_t *to = scan->bytes;
    for (;;) {
        const uint8_t *found = memchr(from, 0xff, (size_t)(end - from));
        if (!found || end - found < 2 || found[1] == 0xff)
            return 0;
        size_t count = (size_t)(found - from);
        memcpy(to, from, count);
        to += count;
        from = found;
        if (found[1])
            break;
        *to++ = 0xff;
        from += 2;
    }
    memset(to, 0, PADDING);
    source->next = from;
    source->left = (size_t)(end - from);
    scan->bits = 0;
    scan->num_bits = 0;
    scan->next = scan->bytes;
    scan->end = to;
    memset(scan->sums, 0, sizeof scan->sums);
    return 1;
}

/* Bits of the segment that were not read; negative where more were. */
static ptrdiff_t bits_left(const struct scan *scan)
{
    return (scan->end - scan->next) * 8 + scan->num_bits;
}

static int restart(struct scan *scan, struct decoder *decoder)
{
    struct source *source = decoder->source;
    ptrdiff_t left = bits_left(scan);
    if (left < 0 || left >= 8 || source->next[1] != 0xd0 + scan->restart)
        return 0;
    source->next += 2;
    source->left -= 2;
    scan->restart = (scan->restart + 1) % 8;
    scan->until_restart = decoder->restart_interval;
    return begin_segment(scan, source);
}

static int read_mcu(struct scan *scan, struct decoder *decoder, int16_t (**blocks)[64])
{
    struct reader reader = {scan->bits, scan->num_bits, scan->next};
    int is_wanted = blocks && scan->column >= scan->first && scan->column < scan->wanted_end;
    for (int i = 0; i < decoder->blocks_in_mcu; i++) {
        const struct block *block = &scan->blocks[i];
        int difference, done;
        if (!read_difference(&reader, block->dc, &difference))
            return 0;
        int sum = scan->sums[block->component] += difference;
        if (sum != (int16_t)sum)
            return 0;
        if (is_wanted)
            (*blocks[i])[0] = (int16_t)sum;
        if (is_wanted && !block->is_flat)
            done = read_block(&reader, block->ac, *blocks[i]);
        else
            done = skip_block(&reader, block->ac);
        if (!done)
            return 0;
    }
    scan->bits = reader.bits;
    scan->num_bits = reader.count;
    scan->next = reader.next;
    return bits_left(scan) >= 0;
}

/* After the last MCU the marker must follow. */
static int next_mcu(struct scan *scan, struct decoder *decoder)
{
    if (++scan->column < decoder->mcus_per_row)
        return 1;
    scan->column = 0;
    return ++scan->row < decoder->mcu_rows || bits_left(scan) < 8;
}

static int decode_mcu(struct decoder *decoder, int16_t (**blocks)[64])
{
    struct scan *scan = decoder->client;
    int done = scan->row < decoder->mcu_rows;
    if (done && decoder->restart_interval && !scan->until_restart)
        done = restart(scan, decoder);
    scan->until_restart--;
    if (!done || !read_mcu(scan, decoder, blocks) || !next_mcu(scan, decoder))
        scan->give_up(decoder);
    return 1;
}

static int is_usual(const struct decoder *decoder)
{
    return decoder->precision == 8 && !decoder->is_progressive && !decoder->is_arithmetic &&
           decoder->scan_components == decoder->num_components &&
           decoder->scan_components <= TABLES && decoder->blocks_in_mcu > 0 &&
           decoder->blocks_in_mcu <= BLOCKS && decoder->spectrum[0] == 0 &&
           decoder->spectrum[1] == LAST && !decoder->spectrum[2] && !decoder->spectrum[3] &&
           !decoder->unread_marker;
}

static int prepare_blocks(struct scan *scan, const struct decoder *decoder)
{
    for (int i = 0; i < decoder->blocks_in_mcu; i++) {
        int number = decoder->mcu_membership[i];
        if (number < 0 || number >= decoder->scan_components)
            return 0;
        const struct component *component = decoder->scan_component[number];
        int dc = component->dc_table, ac = component->ac_table;
        if (dc < 0 || dc >= TABLES || ac < 0 || ac >= TABLES)
            return 0;
        if (!make_table(&scan->dc[dc], decoder->dc_tables[dc], 0) ||
            !make_table(&scan->ac[ac], decoder->ac_tables[ac], 1))
            return 0;
        if (!scan->ac[ac].is_complete) {
            make_pairs(&scan->ac[ac]);
            make_skips(&scan->ac[ac]);
        }
        scan->blocks[i] =
            (struct block){&scan->dc[dc], &scan->ac[ac], number, component->dct_size == 1};
    }
    return 1;
}

struct scan *scan_begin(struct decoder *decoder, void (*give_up)(struct decoder *))
{
    if (!is_usual(decoder))
        return NULL;
    struct source *source = decoder->source;
    struct source before = *source;
    struct scan *scan = calloc(1, sizeof *scan);
    if (!scan)
        return NULL;
    scan->bytes = malloc(source->left + PADDING);
    if (!scan->bytes || !prepare_blocks(scan, decoder) || !begin_segment(scan, source)) {
        *source = before;
        scan_end(scan);
        return NULL;
    }
    scan->give_up = give_up;
    scan->wanted_end = decoder->mcus_per_row;
    scan->until_restart = decoder->restart_interval;
    decoder->client = scan;
    decoder->entropy->decode_mcu = decode_mcu;
    return scan;
}

void scan_wants(struct scan *scan, uint32_t first, uint32_t end)
{
    scan->first = first;
    scan->wanted_end = end;
}

void scan_end(struct scan *scan)
{
    if (scan)
        free(scan->bytes);
    free(scan);
}
