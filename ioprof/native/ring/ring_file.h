/* The file under a ring: allocating blocks, mapping chunks, copying a chunk into its place. */
#ifndef IOPROF_RING_FILE_H
#define IOPROF_RING_FILE_H

#include "ring.h"

#define IOPROF_WINDOW_BYTES ((size_t)IOPROF_WINDOW_CHUNKS * IOPROF_CHUNK_BYTES)

#pragma GCC visibility push(hidden)

/* Allocates the blocks of a range of a file and maps it shared; NULL and errno where there is no
 * room. `offset` is a multiple of 8. */
void *ring_map_blocks(int descriptor, off_t offset, size_t length);

/* Creates the file at `ring->path` with its header, mapped. Returns 0, or -1 and errno. */
int ring_create_file(struct ioprof_ring *ring, const struct ioprof_file_header *header);

/* Maps a window of chunks, from chunk `first` on; NULL where there is no room or the path names
 * another file. */
struct ioprof_chunk *ring_map_window(struct ioprof_ring *ring, uint64_t first);

void ring_unmap_window(struct ioprof_chunk *chunks, uint64_t first);

/* Writes a chunk as it is now to the place of chunk `to`; false where that failed. */
bool ring_copy_chunk(struct ioprof_ring *ring, const struct ioprof_chunk *chunk, uint64_t to);

#pragma GCC visibility pop

#endif
