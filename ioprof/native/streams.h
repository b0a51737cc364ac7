/* Streams of stdio. The C library fills their buffers within itself, where no hook sees it. So a call that its buffer can serve
 * passes through. Any other is watched from outside: what it moved is the distance that the descriptor went meanwhile. */
#ifndef IOPROF_STREAMS_H
#define IOPROF_STREAMS_H

#include "reads.h"

#ifdef __GLIBC__

/* Bytes in the buffer, not yet taken. */
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
    bool is_file, heeded;
    size_t buffered;
};

static int64_t kernel_position(int descriptor)
{
    int saved_errno = errno;
    int64_t position = REAL(lseek64)(descriptor, 0, SEEK_CUR);
    errno = saved_errno;
    return position;
}

/* A stream moves its descriptor's position as it pleases. */
static void untrack(int descriptor)
{
    if ((unsigned)descriptor < FILES && is_known(&files[descriptor]) && (flags_of(&files[descriptor]) & FILE_TRACKED))
        atomic_fetch_and(&files[descriptor].flags, ~(uint32_t)FILE_TRACKED);
}

static struct filling begin_filling(FILE *stream)
{
    struct filling filling = {.heeded = stream->_fileno >= 0 && recording()};
    if (!filling.heeded)
        return filling;
    untrack(stream->_fileno);
    filling.is_file = begin_other_reading(stream->_fileno, PLAIN, &filling.reading);
    filling.buffered = buffered(stream);
    return filling;
}

/* `taken`: bytes that the call handed out, -1 if that is not known. Needed only where there is no position: on a pipe. */
static void end_filling(struct filling *filling, const FILE *stream, int64_t taken)
{
    if (!filling->heeded)
        return;
    if (filling->is_file) {
        int64_t moved = kernel_position(stream->_fileno) - filling->reading.position;
        if (moved > 0)
            end_other_reading(&filling->reading, moved);
        return;
    }
    int64_t filled = taken + (int64_t)buffered(stream) - (int64_t)filling->buffered;
    if (taken < 0)
        note(NOTED_STDIO);
    else if (filled > 0)
        count_read(filled);
}

/* ---------------------------------------------------------------------------------------- opening and closing */

static FILE *end_stream_open(FILE *stream, int64_t start, const char *path)
{
    const int untracked = O_RDWR;
    end_open(stream == NULL ? -1 : stream->_fileno, start, AT_FDCWD, path, untracked, &NO_KEY);
    return stream;
}

#define FOPEN(name) \
    FILE *hook_##name(const char *path, const char *mode) \
    { \
        if (!recording()) \
            return REAL(name)(path, mode); \
        int64_t start = clock_now(); \
        return end_stream_open(REAL(name)(path, mode), start, path); \
    }
#define FREOPEN(name) \
    FILE *hook_##name(const char *path, const char *mode, FILE *stream) \
    { \
        if (!recording()) \
            return REAL(name)(path, mode, stream); \
        forget_file(stream->_fileno); \
        int64_t start = clock_now(); \
        return end_stream_open(REAL(name)(path, mode, stream), start, path); \
    }

FOPEN(fopen)
FOPEN(fopen64)
FREOPEN(freopen)
FREOPEN(freopen64)

FILE *hook_fdopen(int descriptor, const char *mode)
{
    if (recording_already())
        untrack(descriptor);
    return REAL(fdopen)(descriptor, mode);
}

int hook_fclose(FILE *stream)
{
    if (!recording_already())
        return REAL(fclose)(stream);
    int32_t number = number_of(stream->_fileno);
    forget_file(stream->_fileno);
    int64_t start = clock_now();
    int result = REAL(fclose)(stream);
    END_SHORT(start, "close", number);
    return result;
}

FILE *hook_popen(const char *command, const char *mode)
{
    before_fork();
    return REAL(popen)(command, mode);
}

int hook_pclose(FILE *stream)
{
    if (recording_already())
        forget_file(stream->_fileno);
    compare_around_child(false);
    int result = REAL(pclose)(stream);
    compare_around_child(true);
    return result;
}

/* ---------------------------------------------------------------------------------------- reading */

#define WATCHED(result_type, call, taken) \
    struct filling filling = begin_filling(stream); \
    result_type result = call; \
    end_filling(&filling, stream, taken); \
    return result;

static inline bool serves(const FILE *stream, size_t size, size_t count)
{
    size_t bytes;
    return !__builtin_mul_overflow(size, count, &bytes) && bytes <= buffered(stream);
}

#define FREAD(name, parameters, arguments) \
    size_t hook_##name parameters \
    { \
        if (serves(stream, size, count)) \
            return REAL(name) arguments; \
        WATCHED(size_t, REAL(name) arguments, (int64_t)(result * size)) \
    }

FREAD(fread, (void *buffer, size_t size, size_t count, FILE *stream), (buffer, size, count, stream))
FREAD(fread_unlocked, (void *buffer, size_t size, size_t count, FILE *stream), (buffer, size, count, stream))
FREAD(__fread_chk, (void *buffer, size_t room, size_t size, size_t count, FILE *stream), (buffer, room, size, count, stream))
FREAD(__fread_unlocked_chk, (void *buffer, size_t room, size_t size, size_t count, FILE *stream),
      (buffer, room, size, count, stream))

#define FGETS(name, parameters, arguments) \
    char *hook_##name parameters \
    { \
        if (size < 2 || has_line(stream, '\n', (size_t)size - 1)) \
            return REAL(name) arguments; \
        WATCHED(char *, REAL(name) arguments, result == NULL ? 0 : (int64_t)strlen(result)) \
    }

FGETS(fgets, (char *text, int size, FILE *stream), (text, size, stream))
FGETS(fgets_unlocked, (char *text, int size, FILE *stream), (text, size, stream))
FGETS(__fgets_chk, (char *text, size_t room, int size, FILE *stream), (text, room, size, stream))
FGETS(__fgets_unlocked_chk, (char *text, size_t room, int size, FILE *stream), (text, room, size, stream))

#define GETDELIM(name, parameters, arguments, delimiter) \
    ssize_t hook_##name parameters \
    { \
        if (has_line(stream, delimiter, SIZE_MAX)) \
            return REAL(name) arguments; \
        WATCHED(ssize_t, REAL(name) arguments, result < 0 ? 0 : (int64_t)result) \
    }

GETDELIM(getline, (char **line, size_t *room, FILE *stream), (line, room, stream), '\n')
GETDELIM(getdelim, (char **line, size_t *room, int end, FILE *stream), (line, room, end, stream), end)
GETDELIM(__getdelim, (char **line, size_t *room, int end, FILE *stream), (line, room, end, stream), end)

#define GETC(name, bytes) \
    int hook_##name(FILE *stream) \
    { \
        if (buffered(stream) >= (bytes)) \
            return REAL(name)(stream); \
        WATCHED(int, REAL(name)(stream), result == EOF ? 0 : (int64_t)(bytes)) \
    }

GETC(fgetc, 1)
GETC(getc, 1)
GETC(_IO_getc, 1)
GETC(fgetc_unlocked, 1)
GETC(getc_unlocked, 1)
GETC(getw, sizeof(int))
GETC(__uflow, 1)

/* Fills the buffer and takes nothing from it. */
int hook___underflow(FILE *stream)
{
    WATCHED(int, REAL(__underflow)(stream), 0)
}

#define GETCHAR(name) \
    int hook_##name(void) \
    { \
        FILE *stream = stdin; \
        if (buffered(stream) > 0) \
            return REAL(name)(); \
        WATCHED(int, REAL(name)(), result == EOF ? 0 : 1) \
    }

GETCHAR(getchar)
GETCHAR(getchar_unlocked)

/* How much a conversion takes is not known before; what is longer than this is rare. */
#define LONG_ITEM 512

#define VSCANF(name) \
    int hook_##name(FILE *stream, const char *format, va_list values) \
    { \
        if (buffered(stream) >= LONG_ITEM) \
            return REAL(name)(stream, format, values); \
        WATCHED(int, REAL(name)(stream, format, values), -1) \
    }
#define SCANF(name, with_list) \
    int hook_##name(FILE *stream, const char *format, ...) \
    { \
        va_list values; \
        va_start(values, format); \
        int result = hook_##with_list(stream, format, values); \
        va_end(values); \
        return result; \
    }

VSCANF(vfscanf)
VSCANF(__isoc99_vfscanf)
VSCANF(__isoc23_vfscanf)
SCANF(fscanf, vfscanf)
SCANF(__isoc99_fscanf, __isoc99_vfscanf)
SCANF(__isoc23_fscanf, __isoc23_vfscanf)

/* ---------------------------------------------------------------------------------------- moving about */

/* A seek beyond the buffer fills it anew, from the page before the new place. The buffer then ends where the descriptor stands. */
static void end_seek(struct filling *filling, const FILE *stream)
{
    if (!filling->heeded || !filling->is_file)
        return;
    int64_t stands = kernel_position(stream->_fileno), filled = stream->_IO_read_end - stream->_IO_read_base;
    if (filled <= 0 || stands == filling->reading.position)
        return;
    filling->reading.position = stands - filled;
    end_other_reading(&filling->reading, filled);
}

#define FSEEK(name, parameters, arguments) \
    int hook_##name parameters \
    { \
        struct filling filling = begin_filling(stream); \
        int result = REAL(name) arguments; \
        end_seek(&filling, stream); \
        return result; \
    }

FSEEK(fseek, (FILE *stream, long offset, int whence), (stream, offset, whence))
FSEEK(fseeko, (FILE *stream, off_t offset, int whence), (stream, offset, whence))
FSEEK(fseeko64, (FILE *stream, off_t offset, int whence), (stream, offset, whence))
FSEEK(fsetpos, (FILE *stream, const void *position), (stream, position))
FSEEK(fsetpos64, (FILE *stream, const void *position), (stream, position))

void hook_rewind(FILE *stream)
{
    struct filling filling = begin_filling(stream);
    REAL(rewind)(stream);
    end_seek(&filling, stream);
}

#endif

#endif
