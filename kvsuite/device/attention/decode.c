/* Decode attention of one query token a sequence over keys and values in blocks.
 *
 *   query, out       float [sequences, kv_heads * GROUP, HEAD_DIM]
 *   keys, values     element; head h of token t of block b lies at b * block_stride + t * token_stride
 *                    + h * HEAD_DIM
 *   tables           int32 [sequences, table_width]; entries past a sequence's last block are never read.
 *                    NULL is the contiguous control: block s is sequence s, whole, and no table is looked up.
 *
 * Tokens are taken TILE at a time, whole rows in the order of the sequence: scores of all heads, an online
 * softmax, then the weighted values. With PREFETCH, each of the two passes asks for the rows that the other one
 * reads next, so that memory is busy in both; rows far apart are asked for together, because neighbours keep
 * fewer of its banks busy. Products and sums are float, in an order that depends on HEAD_DIM, GROUP and the
 * length alone: not on block size, table or prefetching. Only rows below the length are read.
 *
 * Built once for each HEAD_DIM (a multiple of 8), GROUP (query heads of a KV head), element and PREFETCH. */
#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(HEAD_DIM) || !defined(GROUP) || !defined(PREFETCH) || HEAD_DIM % 8 || GROUP < 1
#error "give -DHEAD_DIM=<multiple of 8> -DGROUP=<1 or more> -DPREFETCH=<0 or 1>"
#endif

#if defined(__AVX512F__) && HEAD_DIM % 16 == 0
#define LANES 16
#else
#define LANES 8
#endif

/* A vector of scores holds PACK query heads of LANES / PACK tokens: lane = token * PACK + query head. */
#if GROUP > 2
#define PACK 4
#else
#define PACK GROUP
#endif
enum {
  PACKS = (GROUP + PACK - 1) / PACK, /* of one KV head; the last one is filled up with query heads of zeros */
  SCORED = LANES / PACK,             /* tokens in a vector of scores */
  SUMMED = 8,                        /* tokens added to the sums at a time */
  TILE = 64,                         /* a multiple of both */
};

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));
typedef uint16_t shorts __attribute__((vector_size(LANES * 2)));

static inline vec load_float(const float *from) {
  vec out;
  memcpy(&out, from, sizeof out);
  return out;
}

static inline void store_float(float *to, vec x) { memcpy(to, &x, sizeof x); }

#if defined(ELEMENT_FLOAT32)
typedef float element;
static inline vec load(const element *from) { return load_float(from); }
#else
typedef uint16_t element;
static inline uvec load_bits(const element *from) {
  shorts bits;
  memcpy(&bits, from, sizeof bits);
  return __builtin_convertvector(bits, uvec);
}
#if defined(ELEMENT_BFLOAT16)
static inline vec load(const element *from) { return (vec)(load_bits(from) << 16); }
#elif defined(ELEMENT_FLOAT16)
/* Exponent and fraction moved to float's places are the value times 2^-112; infinities and NaN keep theirs. */
static inline vec load(const element *from) {
  uvec bits = load_bits(from), body = (bits & 0x7fff) << 13;
  uvec special = (uvec)(body >= 0x0f800000) & 0x7f800000;
  vec magnitude = (vec)body * 0x1p112f;
  return (vec)((uvec)magnitude | special | (bits & 0x8000) << 16);
}
#else
#error "give one of -DELEMENT_FLOAT32, -DELEMENT_BFLOAT16, -DELEMENT_FLOAT16"
#endif
#endif

static inline vec select_lanes(ivec mask, vec yes, vec no) {
  return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}

/* e^x for x <= 0, within 2 ulp; e^-87 (1.6e-38) below -87. A NaN stays one. */
static inline vec exp_of(vec x) {
  const vec lowest = (vec){} - 87.0f, rounding = (vec){} + 0x1.8p23f;
  x = select_lanes(x < lowest, lowest, x);
  vec whole = (x * 0x1.715476p+0f + rounding) - rounding; /* to the nearest integer */
  vec rest = (x - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f; /* ln 2 in two parts */
  static const float terms[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1, 1};
  vec sum = (vec){} + terms[0];
  for (int term = 1; term < 8; term++)
    sum = sum * rest + terms[term];
  return sum * (vec)((__builtin_convertvector(whole, ivec) + 127) << 23);
}

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
/* Runs of w lanes, by turns from a and from b: the even runs of each, or the odd ones. */
#define EVEN(lane, w) ((lane) / (w) % 2 * LANES + (lane) / (w) / 2 * 2 * (w) + (lane) % (w))
#define ODD(lane, w) (EVEN(lane, w) + (w))
#define EIGHT(run, w, first)                                                                              \
  run(first, w), run(first + 1, w), run(first + 2, w), run(first + 3, w), run(first + 4, w),              \
      run(first + 5, w), run(first + 6, w), run(first + 7, w)
#if LANES == 16
#define RUNS(run, w) EIGHT(run, w, 0), EIGHT(run, w, 8)
#else
#define RUNS(run, w) EIGHT(run, w, 0)
#endif
#define FOLD(parts, w)                                                                                    \
  for (int pair = 0; pair < LANES / 2 / (w); pair++)                                                      \
  parts[pair] = SHUFFLE(parts[2 * pair], parts[2 * pair + 1], RUNS(EVEN, w)) +                            \
                SHUFFLE(parts[2 * pair], parts[2 * pair + 1], RUNS(ODD, w))

/* Return the vector whose lane i is the sum of the lanes of parts[i]; parts is spoiled. */
static inline vec sums_of(vec parts[LANES]) {
  FOLD(parts, 1);
  FOLD(parts, 2);
  FOLD(parts, 4);
#if LANES == 16
  FOLD(parts, 8);
#endif
  return parts[0];
}

#define TURN(lane, by) (((lane) + (by)) % LANES)

/* Return the largest score of each lane's query head, in every lane of it. */
static inline vec highest_of(vec scores) {
  vec turned;
#define RAISE(by)                                                                                         \
  if ((by) % PACK == 0 && (by) < LANES) {                                                                 \
    turned = SHUFFLE(scores, scores, RUNS(TURN, by));                                                     \
    scores = select_lanes(turned > scores, turned, scores);                                               \
  }
  RAISE(8) RAISE(4) RAISE(2) RAISE(1)
  return scores;
}

/* Ask for one head of one token. */
static inline void ask_for(const element *head) {
  if (PREFETCH)
    for (size_t byte = 0; byte < HEAD_DIM * sizeof(element); byte += 64)
      __builtin_prefetch((const char *)head + byte, 0, 3);
}

struct call {
  const float *query;
  const element *keys, *values;
  const int32_t *tables, *lengths;
  float *out;
  int64_t sequences, kv_heads, num_blocks, block_size, table_width, block_stride, token_stride;
  int64_t fault_sequence, fault_entry; /* where a status other than DONE was met */
  float scale;
};

enum status { DONE, NO_MEMORY, BAD_LENGTH, BAD_BLOCK };

struct scratch {
  int64_t rows[2][TILE]; /* where the tokens of this tile and the next lie, in elements */
  float *query;          /* [kv_heads, PACKS, PACK, HEAD_DIM], scaled */
  float *sums;           /* the same shape: weighted values */
  float *scores;         /* [kv_heads, PACKS, TILE, PACK]; then the weights */
  float *peaks, *totals; /* [kv_heads, PACKS, LANES]: largest score of a lane's query head, sums of weights */
};

/* Find the rows of the TILE tokens from `first`; places past the length repeat the last row. */
static enum status locate(struct call *call, int64_t sequence, int64_t first, int64_t *rows) {
  int64_t left = call->lengths[sequence] - first, tokens = left < TILE ? left : TILE, token = 0;
  int64_t entry = first / call->block_size, offset = first % call->block_size;
  for (; token < tokens; entry++, offset = 0) {
    int64_t block = call->tables ? call->tables[sequence * call->table_width + entry] : sequence;
    if (block < 0 || block >= call->num_blocks) {
      call->fault_entry = entry;
      return BAD_BLOCK;
    }
    int64_t row = block * call->block_stride + offset * call->token_stride;
    int64_t end = token + call->block_size - offset;
    for (end = end < tokens ? end : tokens; token < end; token++, row += call->token_stride)
      rows[token] = row;
  }
  for (; token < TILE; token++)
    rows[token] = rows[token - 1];
  return DONE;
}

static void score_keys(const struct call *call, const struct scratch *s, const int64_t *rows, int64_t tokens) {
  for (int64_t first = 0; first < tokens; first += SCORED)
    for (int64_t head = 0; head < call->kv_heads; head++) {
      const int64_t *row = rows + first, column = head * HEAD_DIM;
      for (int token = 0; token < SCORED; token++)
        ask_for(call->values + rows[first / SCORED + token * (TILE / SCORED)] + column);
      for (int64_t pack = head * PACKS; pack < (head + 1) * PACKS; pack++) {
        const float *query = s->query + pack * PACK * HEAD_DIM;
        vec parts[LANES] = {};
        for (int d = 0; d < HEAD_DIM; d += LANES) {
          vec key[SCORED];
          for (int token = 0; token < SCORED; token++)
            key[token] = load(call->keys + row[token] + column + d);
          for (int q = 0; q < PACK; q++) {
            vec part = load_float(query + q * HEAD_DIM + d);
            for (int token = 0; token < SCORED; token++)
              parts[token * PACK + q] += key[token] * part;
          }
        }
        store_float(s->scores + (pack * TILE + first) * PACK, sums_of(parts));
      }
    }
}

/* Turn the scores of a pack into weights, and scale what was summed before to the new peaks. */
static void weigh(const struct scratch *s, int64_t pack, int64_t tokens) {
  float *scores = s->scores + pack * TILE * PACK, *sums = s->sums + pack * PACK * HEAD_DIM;
  float *peaks = s->peaks + pack * LANES, *totals = s->totals + pack * LANES;
  int64_t end = tokens * PACK;
  vec before = load_float(peaks), peak = before, total = {};
  for (int64_t at = 0; at < end; at += LANES) {
    vec score = load_float(scores + at);
    peak = select_lanes(score > peak, score, peak);
  }
  peak = highest_of(peak);
  vec decay = exp_of(before - peak);
  for (int64_t at = 0; at < end; at += LANES) {
    vec weight = exp_of(load_float(scores + at) - peak);
    for (int64_t lane = end - at; lane < LANES; lane++)
      weight[lane] = 0; /* repeats of the last row, not to be counted */
    store_float(scores + at, weight);
    total += weight;
  }
  store_float(peaks, peak);
  store_float(totals, load_float(totals) * decay + total);
  for (int q = 0; q < PACK; q++)
    for (int d = 0; d < HEAD_DIM; d += LANES)
      store_float(sums + q * HEAD_DIM + d, load_float(sums + q * HEAD_DIM + d) * decay[q]);
}

/* Add `count` tokens to the sums of one pack; `values` is where its head's elements of row 0 lie. */
static inline __attribute__((always_inline)) void add_values(const element *values, const int64_t *row,
                                                             const float *weights, float *sums, int count) {
  for (int d = 0; d < HEAD_DIM; d += LANES) {
    vec value[SUMMED];
    for (int token = 0; token < count; token++)
      value[token] = load(values + row[token] + d);
    for (int q = 0; q < PACK; q++) {
      vec sum = load_float(sums + q * HEAD_DIM + d);
      for (int token = 0; token < count; token++)
        sum += value[token] * weights[token * PACK + q];
      store_float(sums + q * HEAD_DIM + d, sum);
    }
  }
}

static void sum_values(const struct call *call, const struct scratch *s, const int64_t *rows,
                       const int64_t *next_rows, int64_t tokens) {
  for (int64_t first = 0; first < tokens; first += SUMMED)
    for (int64_t head = 0; head < call->kv_heads; head++) {
      const int64_t *row = rows + first;
      for (int token = 0; next_rows && token < SUMMED; token++)
        ask_for(call->keys + next_rows[first / SUMMED + token * (TILE / SUMMED)] + head * HEAD_DIM);
      for (int64_t pack = head * PACKS; pack < (head + 1) * PACKS; pack++) {
        const element *values = call->values + head * HEAD_DIM;
        const float *weights = s->scores + (pack * TILE + first) * PACK;
        float *sums = s->sums + pack * PACK * HEAD_DIM;
        if (tokens - first >= SUMMED)
          add_values(values, row, weights, sums, SUMMED);
        else
          add_values(values, row, weights, sums, tokens - first);
      }
    }
}

static enum status attend(struct call *call, struct scratch *s, int64_t sequence) {
  int64_t length = call->lengths[sequence], packs = call->kv_heads * PACKS, heads = packs * PACK;
  memset(s->query, 0, sizeof(float) * heads * HEAD_DIM);
  memset(s->sums, 0, sizeof(float) * heads * HEAD_DIM);
  for (int64_t head = 0; head < call->kv_heads; head++)
    for (int64_t at = 0; at < GROUP * HEAD_DIM; at++)
      s->query[head * PACKS * PACK * HEAD_DIM + at] =
          call->query[(sequence * call->kv_heads + head) * GROUP * HEAD_DIM + at] * call->scale;
  for (int64_t lane = 0; lane < packs * LANES; lane++) {
    s->peaks[lane] = -FLT_MAX;
    s->totals[lane] = 0;
  }
  enum status status = locate(call, sequence, 0, s->rows[0]);
  for (int64_t first = 0, turn = 0; first < length && status == DONE; first += TILE, turn ^= 1) {
    int64_t tokens = length - first < TILE ? length - first : TILE;
    const int64_t *rows = s->rows[turn], *next_rows = NULL;
    if (first + TILE < length) {
      status = locate(call, sequence, first + TILE, s->rows[turn ^ 1]);
      if (status != DONE)
        break;
      next_rows = s->rows[turn ^ 1];
    }
    score_keys(call, s, rows, tokens);
    for (int64_t pack = 0; pack < packs; pack++)
      weigh(s, pack, tokens);
    sum_values(call, s, rows, next_rows, tokens);
  }
  for (int64_t head = 0; head < call->kv_heads; head++)
    for (int q = 0; q < GROUP; q++) {
      int64_t from = head * PACKS * PACK + q, to = (sequence * call->kv_heads + head) * GROUP + q;
      float total = 0;
      for (int lane = q % PACK; lane < LANES; lane += PACK)
        total += s->totals[from / PACK * LANES + lane];
      for (int d = 0; d < HEAD_DIM; d++)
        call->out[to * HEAD_DIM + d] = s->sums[from * HEAD_DIM + d] / total;
    }
  return status;
}

int kvsuite_decode(struct call *call) {
  int64_t packs = call->kv_heads * PACKS, heads = packs * PACK;
  struct scratch s;
  size_t bytes = sizeof(float) * (heads * (2 * HEAD_DIM + TILE) + 2 * packs * LANES);
  float *room = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!room)
    return NO_MEMORY;
  s.query = room;
  s.sums = s.query + heads * HEAD_DIM;
  s.scores = s.sums + heads * HEAD_DIM;
  s.peaks = s.scores + heads * TILE;
  s.totals = s.peaks + packs * LANES;
  int64_t capacity = call->tables ? call->table_width * call->block_size : call->block_size;
  enum status status = DONE;
  for (int64_t sequence = 0; sequence < call->sequences && status == DONE; sequence++) {
    call->fault_sequence = sequence;
    int64_t length = call->lengths[sequence];
    status = length < 1 || length > capacity ? BAD_LENGTH : attend(call, &s, sequence);
  }
  free(room);
  return status;
}
