/* Hooks of streams of stdio. The C library fills their buffers internally, past the hooks. So a
 * call that the buffer can serve is passed through. Any other is observed from outside: the bytes
 * that it read are the distance that the descriptor's position moved. */
#include "io_counters.h"
#include "opens.h"
#include "positions.h"
#include "reading.h"
#include "real.h"
#include "received_files.h"
#include "receiving.h"
#include "request.h"
#include "short_calls.h"

#ifdef __GLIBC__

/* Bytes in the buffer that were not handed out yet. */
static inline size_t buffered(const FILE *stream)
{
    return (size_t)(stream->_IO_read_end - stream->_IO_read_ptr);
}

static inline bool has_line(const FILE *stream, int delimiter, size_t most)
{
    size_t there = buffered(stream);
    return there >= most || (there > 0 && memchr(stream->_IO_read_ptr, delimiter, there) != NULL);
}

/* A call on a stream while it goes on. */
struct filling {
    struct reading reading;
    struct receiving receiving; /* of no regular file */
    bool is_file, is_recorded;
    size_t buffered;
};

static struct filling begin_filling(FILE *stream)
{
    struct filling filling = {.is_recorded = stream->_fileno >= 0 && is_recording()};
    if (!filling.is_recorded)
        return filling;
    untrack_position(stream->_fileno);
    filling.is_file = begin_other_reading(stream->_fileno, AT_POSITION, &filling.reading);
    if (!filling.is_file)
        filling.receiving = begin_receiving(stream->_fileno);
    filling.buffered = buffered(stream);
    return filling;
}

/* `taken`: bytes that the call handed out, -1 if that is not known. Needed only where there is no
 * position: on a pipe. */
static void end_filling(struct filling *filling, const FILE *stream, int64_t taken)
{
    if (!filling->is_recorded)
        return;
    if (filling->is_file) {
        int64_t moved = ask_position(stream->_fileno) - filling->reading.position;
        if (moved > 0)
            end_other_reading(&filling->reading, moved);
        return;
    }
    int64_t filled = taken + (int64_t)buffered(stream) - (int64_t)filling->buffered;
    if (taken < 0)
        set_noted(NOTED_STDIO_OF_UNKNOWN_SIZE);
    else if (filled > 0)
        count_read(filled);
    if (filled > 0)
        end_receiving(&filling->receiving, filled, NULL, 0, NULL);
}

/* ------------------------------------------------------------------------- opening and closing */

static FILE *end_stream_open(FILE *stream, int64_t start, const char *path, const char *mode)
{
    const int untracked = O_RDWR | (mode[0] == 'w' ? O_CREAT : 0);
    end_open(stream == NULL ? -1 : stream->_fileno, start, AT_FDCWD, path, untracked, &NO_KEY);
    return stream;
}

#define FOPEN(name)                                                        \
    FILE *hook_##name(const char *path, const char *mode)                  \
    {                                                                      \
        if (!is_recording())                                               \
            return REAL(name)(path, mode);                                 \
        int64_t start = clock_now();                                       \
        return end_stream_open(REAL(name)(path, mode), start, path, mode); \
    }
#define FREOPEN(name)                                                              \
    FILE *hook_##name(const char *path, const char *mode, FILE *stream)            \
    {                                                                              \
        if (!is_recording())                                                       \
            return REAL(name)(path, mode, stream);                                 \
        forget_file(stream->_fileno);                                              \
        int64_t start = clock_now();                                               \
        return end_stream_open(REAL(name)(path, mode, stream), start, path, mode); \
    }

FOPEN(fopen)
FOPEN(fopen64)
FREOPEN(freopen)
FREOPEN(freopen64)

FILE *hook_fdopen(int descriptor, const char *mode)
{
    if (is_recording_already())
        untrack_position(descriptor);
    return REAL(fdopen)(descriptor, mode);
}

int hook_fclose(FILE *stream)
{
    if (!is_recording_already())
        return REAL(fclose)(stream);
    struct open_file *file = known_file(stream->_fileno);
    int32_t number = file != NULL ? GET(file, path) : -1;
    if (file != NULL && (flags_of(file) & FILE_CREATED))
        end_created(stream->_fileno, file);
    forget_file(stream->_fileno);
    int64_t start = clock_now();
    int result = REAL(fclose)(stream);
    END_SHORT_CALL(start, "close", number);
    return result;
}

FILE *hook_popen(const char *command, const char *mode)
{
    count_fork();
    return REAL(popen)(command, mode);
}

int hook_pclose(FILE *stream)
{
    if (is_recording_already())
        forget_file(stream->_fileno);
    compare_around_child(false);
    int result = REAL(pclose)(stream);
    compare_around_child(true);
    return result;
}

/* ------------------------------------------------------------------------------------- reading */

#define FILL(result_type, call, taken)              \
    struct filling filling = begin_filling(stream); \
    result_type result = call;                      \
    end_filling(&filling, stream, taken);           \
    return result;

static inline bool serves(const FILE *stream, size_t size, size_t count)
{
    size_t bytes;
    return !__builtin_mul_overflow(size, count, &bytes) && bytes <= buffered(stream);
}

#define FREAD(name, parameters, arguments)                           \
    size_t hook_##name parameters                                    \
    {                                                                \
        if (serves(stream, size, count))                             \
            return REAL(name) arguments;                             \
        FILL(size_t, REAL(name) arguments, (int64_t)(result * size)) \
    }

FREAD(fread, (void *buffer, size_t size, size_t count, FILE *stream), (buffer, size, count, stream))
FREAD(fread_unlocked, (void *buffer, size_t size, size_t count, FILE *stream),
      (buffer, size, count, stream))
FREAD(__fread_chk, (void *buffer, size_t room, size_t size, size_t count, FILE *stream),
      (buffer, room, size, count, stream))
FREAD(__fread_unlocked_chk, (void *buffer, size_t room, size_t size, size_t count, FILE *stream),
      (buffer, room, size, count, stream))

#define FGETS(name, parameters, arguments)                                               \
    char *hook_##name parameters                                                         \
    {                                                                                    \
        if (size < 2 || has_line(stream, '\n', (size_t)size - 1))                        \
            return REAL(name) arguments;                                                 \
        FILL(char *, REAL(name) arguments, result == NULL ? 0 : (int64_t)strlen(result)) \
    }

FGETS(fgets, (char *text, int size, FILE *stream), (text, size, stream))
FGETS(fgets_unlocked, (char *text, int size, FILE *stream), (text, size, stream))
FGETS(__fgets_chk, (char *text, size_t room, int size, FILE *stream), (text, room, size, stream))
FGETS(__fgets_unlocked_chk, (char *text, size_t room, int size, FILE *stream),
      (text, room, size, stream))

#define GETDELIM(name, parameters, arguments, delimiter)                      \
    ssize_t hook_##name parameters                                            \
    {                                                                         \
        if (has_line(stream, delimiter, SIZE_MAX))                            \
            return REAL(name) arguments;                                      \
        FILL(ssize_t, REAL(name) arguments, result < 0 ? 0 : (int64_t)result) \
    }

GETDELIM(getline, (char **line, size_t *room, FILE *stream), (line, room, stream), '\n')
GETDELIM(getdelim, (char **line, size_t *room, int end, FILE *stream), (line, room, end, stream),
         end)
GETDELIM(__getdelim, (char **line, size_t *room, int end, FILE *stream), (line, room, end, stream),
         end)

#define GETC(name, bytes)                                                   \
    int hook_##name(FILE *stream)                                           \
    {                                                                       \
        if (buffered(stream) >= (bytes))                                    \
            return REAL(name)(stream);                                      \
        FILL(int, REAL(name)(stream), result == EOF ? 0 : (int64_t)(bytes)) \
    }

GETC(fgetc, 1)
GETC(getc, 1)
GETC(_IO_getc, 1)
GETC(fgetc_unlocked, 1)
GETC(getc_unlocked, 1)
GETC(getw, sizeof(int))
GETC(__uflow, 1)

/* Fills the buffer and hands nothing out. */
int hook___underflow(FILE *stream){FILL(int, REAL(__underflow)(stream), 0)}

#define GETCHAR(name)                                  \
    int hook_##name(void)                              \
    {                                                  \
        FILE *stream = stdin;                          \
        if (buffered(stream) > 0)                      \
            return REAL(name)();                       \
        FILL(int, REAL(name)(), result == EOF ? 0 : 1) \
    }

GETCHAR(getchar) GETCHAR(getchar_unlocked)

/* How many bytes a conversion needs is not known before; more than this is rare. */
#define LONG_ITEM 512

#define VSCANF(name)                                                  \
    int hook_##name(FILE *stream, const char *format, va_list values) \
    {                                                                 \
        if (buffered(stream) >= LONG_ITEM)                            \
            return REAL(name)(stream, format, values);                \
        FILL(int, REAL(name)(stream, format, values), -1)             \
    }
#define SCANF(name, with_list)                                 \
    int hook_##name(FILE *stream, const char *format, ...)     \
    {                                                          \
        va_list values;                                        \
        va_start(values, format);                              \
        int result = hook_##with_list(stream, format, values); \
        va_end(values);                                        \
        return result;                                         \
    }

    VSCANF(vfscanf) VSCANF(__isoc99_vfscanf) VSCANF(__isoc23_vfscanf) SCANF(fscanf, vfscanf)
        SCANF(__isoc99_fscanf, __isoc99_vfscanf) SCANF(__isoc23_fscanf, __isoc23_vfscanf)

    /* ------------------------------------------------------------------------------------- seeking
     */

    /* A seek beyond the buffer fills it again, from the page before the new position. The buffer
     * then ends at the descriptor's position. */
    static void end_seek(struct filling *filling, const FILE *stream)
{
    if (!filling->is_recorded || !filling->is_file)
        return;
    int64_t position = ask_position(stream->_fileno),
            filled = stream->_IO_read_end - stream->_IO_read_base;
    if (filled <= 0 || position == filling->reading.position)
        return;
    filling->reading.position = position - filled;
    end_other_reading(&filling->reading, filled);
}

#define FSEEK(name, parameters, arguments)              \
    int hook_##name parameters                          \
    {                                                   \
        struct filling filling = begin_filling(stream); \
        int result = REAL(name) arguments;              \
        end_seek(&filling, stream);                     \
        return result;                                  \
    }

FSEEK(fseek, (FILE * stream, long offset, int whence), (stream, offset, whence))
FSEEK(fseeko, (FILE * stream, off_t offset, int whence), (stream, offset, whence))
FSEEK(fseeko64, (FILE * stream, off_t offset, int whence), (stream, offset, whence))
FSEEK(fsetpos, (FILE * stream, const void *position), (stream, position))
FSEEK(fsetpos64, (FILE * stream, const void *position), (stream, position))

void hook_rewind(FILE *stream)
{
    struct filling filling = begin_filling(stream);
    REAL(rewind)(stream);
    end_seek(&filling, stream);
}

#endif
