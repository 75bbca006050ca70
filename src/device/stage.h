/* stage - weights on their way to a device. Pieces of host memory, usually of a mapped file, are copied by several threads
 * into pinned blocks and go from there by the device's own copies: one block fills while others travel, and a page that has
 * to come from disk holds up one thread only.
 *
 * When pl_stage_upload returns, `from` is no longer needed; the copy itself is enqueued on the stream. Not thread safe. A
 * device whose memory is the host's does without: pl_stage_helps. */
#ifndef PL_DEVICE_STAGE_H
#define PL_DEVICE_STAGE_H

#include "device/device.h"

struct pl_stage;

bool pl_stage_helps(const struct pl_device *d, uint64_t bytes);
enum pl_status pl_stage_create(struct pl_device *d, struct pl_stage **out, struct pl_err *err) PL_MUST_CHECK;
void pl_stage_destroy(struct pl_stage *s); /* waits for what is on its way; NULL is allowed */
enum pl_status pl_stage_upload(struct pl_stage *s, struct pl_device_stream stream, const struct pl_device_buffer *to,
                               uint64_t offset, const void *from, uint64_t bytes, struct pl_err *err) PL_MUST_CHECK;

#endif
