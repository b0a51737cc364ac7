#include "ring_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Blocks for the range, written as zeros where the file system has no fallocate (ENOTSUP on some
 * NFS and FUSE). */
static int write_zeros(int descriptor, off_t offset, size_t length)
{
    static const char zeros[16384];
    while (length > 0) {
        ssize_t written =
            pwrite(descriptor, zeros, length < sizeof zeros ? length : sizeof zeros, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return -1;
        offset += written;
        length -= (size_t)written;
    }
    return 0;
}

/* Growth beyond RLIMIT_FSIZE would raise SIGXFSZ, whose default action ends the process. */
static bool is_within_size_limit(off_t end)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (rlim_t)end <= limit.rlim_cur)
        return true;
    errno = EFBIG;
    return false;
}

/* posix_fallocate is not used: where the file system has no fallocate, glibc reads and rewrites a
 * byte of every block, and so could undo what another thread stores through its mapping. */
static int allocate(int descriptor, off_t offset, size_t length)
{
    int result;
    if (!is_within_size_limit(offset + (off_t)length))
        return -1;
    do
        result = fallocate(descriptor, 0, offset, (off_t)length);
    while (result < 0 && errno == EINTR);
    if (result < 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
        result = write_zeros(descriptor, offset, length);
    return result;
}

void *ring_map_blocks(int descriptor, off_t offset, size_t length)
{
    if (allocate(descriptor, offset, length) < 0)
        return NULL;
    size_t slack = (size_t)offset % (size_t)sysconf(_SC_PAGESIZE);
    char *start = mmap(NULL, length + slack, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
                       offset - (off_t)slack);
    return start == MAP_FAILED ? NULL : start + slack;
}

/* A rehearsal records into a file without a name, of which it holds a descriptor: /proc/self/fd/N,
 * a link that must be followed. */
static int open_file(const char *path, int more)
{
    bool is_rehearsal = strncmp(path, IOPROF_REHEARSAL, sizeof IOPROF_REHEARSAL - 1) == 0;
    return open(path, O_RDWR | O_CLOEXEC | (is_rehearsal ? 0 : O_NOFOLLOW | more), 0600);
}

/* The file is opened again for every window: a job that closes all descriptors it does not know
 * could close one that is kept open, and its number could then be another file of the job. */
static int reopen(struct ioprof_ring *ring)
{
    struct stat status;
    int descriptor = open_file(ring->path, 0);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &status) == 0 && status.st_dev == ring->device &&
        status.st_ino == ring->inode)
        return descriptor;
    close(descriptor);
    return -1;
}

static off_t chunk_offset(uint64_t chunk)
{
    return IOPROF_HEADER_BYTES + (off_t)(chunk * IOPROF_CHUNK_BYTES);
}

struct ioprof_chunk *ring_map_window(struct ioprof_ring *ring, uint64_t first)
{
    int descriptor = reopen(ring);
    if (descriptor < 0)
        return NULL;
    struct ioprof_chunk *chunks =
        ring_map_blocks(descriptor, chunk_offset(first), IOPROF_WINDOW_BYTES);
    close(descriptor);
    return chunks;
}

void ring_unmap_window(struct ioprof_chunk *chunks, uint64_t first)
{
    size_t slack = (size_t)chunk_offset(first) % (size_t)sysconf(_SC_PAGESIZE);
    munmap((char *)chunks - slack, IOPROF_WINDOW_BYTES + slack);
}

/* An incomplete copy does no harm: it has the same flush count as its active chunk still has, so
 * that a reader ignores it. */
bool ring_copy_chunk(struct ioprof_ring *ring, const struct ioprof_chunk *chunk, uint64_t to)
{
    int descriptor =
        to < IOPROF_CHUNKS && is_within_size_limit(chunk_offset(to + 1)) ? reopen(ring) : -1;
    if (descriptor < 0)
        return false;
    size_t done = 0;
    while (done < sizeof *chunk) {
        ssize_t written = pwrite(descriptor, (const char *)chunk + done, sizeof *chunk - done,
                                 chunk_offset(to) + (off_t)done);
        if (written <= 0 && !(written < 0 && errno == EINTR))
            break;
        done += written > 0 ? (size_t)written : 0;
    }
    close(descriptor);
    return done == sizeof *chunk;
}

int ring_create_file(struct ioprof_ring *ring, const struct ioprof_file_header *header)
{
    struct stat status;
    int descriptor = open_file(ring->path, O_CREAT | O_EXCL);
    if (descriptor < 0)
        return -1;
    ring->header = fstat(descriptor, &status) == 0
                       ? ring_map_blocks(descriptor, 0, IOPROF_HEADER_BYTES)
                       : NULL;
    int saved_errno = errno;
    close(descriptor);
    if (ring->header == NULL) {
        unlink(ring->path);
        errno = saved_errno;
        return -1;
    }
    ring->device = status.st_dev;
    ring->inode = status.st_ino;
    memcpy(ring->header, header, sizeof *header);
    return 0;
}
