/* What plain reading reaches: the bandwidth that a kernel's is held against. */
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define LANES 8
#else
#define LANES 4
#endif
typedef uint64_t vec __attribute__((vector_size(LANES * 8)));

/* Return the sum of words[count]; count is a multiple of 64. */
uint64_t kvsuite_read(const uint64_t *words, int64_t count) {
  vec sums[8] = {};
  for (int64_t at = 0; at < count; at += 8 * LANES)
    for (int part = 0; part < 8; part++) {
      vec read;
      memcpy(&read, words + at + part * LANES, sizeof read);
      sums[part] += read;
    }
  uint64_t total = 0;
  for (int part = 0; part < 8; part++)
    for (int lane = 0; lane < LANES; lane++)
      total += sums[part][lane];
  return total;
}
