// Instructions that the lanes of a warp do together, as the PTX ISA has them ("Warp Level Matrix Instructions",
// 9.7.14 in 8.5): where the elements of a matrix lie is written here from its figures, and nowhere read from a
// layout of ours, so that the two prove each other. group: lane / 4; t: lane % 4.

// -- ldmatrix ----------------------------------------------------------------------------------------------
// Lane 8 m + i has the address of row i of matrix m: 8 elements of 16 bits. Register m of a lane has elements
// 2 t and 2 t + 1 of row `group` of matrix m; of column `group`, transposed.
struct at_matrix_load { int count, trans; };

static void at_loaded(at_lane *lanes, int first) {
  auto how = (const at_matrix_load *)lanes[0].c;
  for (int m = 0; m < how->count; ++m)
    for (int lane = 0; lane < AT_WARP; ++lane) {
      int group = lane / 4, t = lane % 4;
      uint16_t halves[2];
      for (int h = 0; h < 2; ++h) {
        int row = how->trans ? 2 * t + h : group, byte = 2 * (how->trans ? group : 2 * t + h);
        const at_lane &from = lanes[8 * m + row];
        at_array &array = *(at_array *)from.b;
        int64_t begin = from.at * array.item + byte;
        int64_t at = begin / array.item, end = (begin + 1) / array.item;
        // what nobody wrote is poison, which may lie in columns that nobody stores
        for (; at <= end; ++at) at_use_of(array, at, first + lane, false);
        memcpy(&halves[h], (const char *)array.value + begin, 2);
      }
      memcpy((char *)lanes[lane].a + 4 * m, halves, 4);
    }
}

void at_ldmatrix(int line, int count, int trans, void *words, at_array *array, int64_t at) {
  at_matrix_load how = {count, trans};
  if (at_now % AT_WARP < 8 * count) {  // other addresses are not looked at
    at_inside(*array, at, 16 / array->item, at_now);
    if (at * array->item % 16)
      at_fault("thread %d of block %d: the row at %s[%lld] of ldmatrix does not begin at a multiple of 16 bytes",
               at_now, at_block, array->what, (long long)at);
  }
  static const char *const names[] = {"ldmatrix", "ldmatrix.trans"};
  at_together(names[trans], line, at_loaded, {words, array, &how, at});
}

// -- mma ---------------------------------------------------------------------------------------------------
static float at_half(uint16_t h) {
  int exponent = h >> 10 & 31, fraction = h & 1023;
  float f = exponent == 31  ? AT_AS_FLOAT(0x7f800000u | fraction << 13)
            : exponent == 0 ? fraction * 0x1p-24f
                            : AT_AS_FLOAT((exponent + 112) << 23 | fraction << 13);
  return h & 0x8000 ? -f : f;
}

static uint16_t at_to_half(float f) {
  unsigned bits = AT_AS_UINT(f), sign = bits >> 16 & 0x8000, whole = bits & 0x7fffffff;
  if (whole > 0x7f800000) return 0x7fff;
  if (whole >= 0x477ff000) return sign | 0x7c00;  // 65520 and above
  if (whole < 0x38800000)                         // below 2^-14: a multiple of 2^-24
    return sign | (uint16_t)lrintf(AT_AS_FLOAT(whole) * 0x1p24f);
  unsigned kept = whole - 0x38000000;
  return sign | (kept + 0xfff + (kept >> 13 & 1)) >> 13;
}

static float at_brain(uint16_t h) { return AT_AS_FLOAT((unsigned)h << 16); }

// Where the multiplicands lie: {register, byte in it} of the element of a lane, and whose it is.
struct at_spot { int lane, byte; };

// A, 16 x k: rows `group` and `group` + 8 take turns in registers 0 and 1 (of columns in the lower half of k)
// and 2 and 3 (in the upper half). A word has 4 / item columns that are neighbours.
static at_spot at_of_a(int row, int column, int k, int item) {
  int half = k / 2, each = 4 / item, within = column % half;
  return {row % 8 * 4 + within / each, 4 * (row / 8 + 2 * (column / half)) + within % each * item};
}
// B, k x 8: register 0 has rows in the lower half of k, 1 in the upper; columns are `group`.
static at_spot at_of_b(int row, int column, int k, int item) {
  int half = k / 2, each = 4 / item, within = row % half;
  return {column * 4 + within / each, 4 * (row / half) + within % each * item};
}
// C and D, 16 x 8: elements 0 and 1 of a lane are columns 2 t and 2 t + 1 of row `group`, 2 and 3 of that + 8.
static at_spot at_of_c(int row, int column, int item) {
  return {row % 8 * 4 + column / 2, (row / 8 * 2 + column % 2) * item};
}

static float at_float_of(int kind, const void *at) {
  uint16_t h;
  float f;
  if (kind == AT_TF32) return memcpy(&f, at, 4), f;
  memcpy(&h, at, 2);
  return kind == AT_BF16 ? at_brain(h) : at_half(h);
}

static void at_rounded_to_tf32(float f, int thread) {
  if (f == f && AT_AS_UINT(f) & 0x1fff)
    at_fault("thread %d of block %d gives mma %.9g, which is no tf32: round it first", thread, at_block, f);
}

static void at_products_of_floats(at_lane *lanes, int first, int kind) {
  const int k = kind == AT_TF32 ? 8 : 16, item = kind == AT_TF32 ? 4 : 2, sum = kind == AT_F16_SUMS ? 2 : 4;
  float a[16][16], b[16][8];
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < k; ++j) {
      at_spot s = at_of_a(i, j, k, item);
      a[i][j] = at_float_of(kind, (const char *)lanes[s.lane].a + s.byte);
      if (kind == AT_TF32) at_rounded_to_tf32(a[i][j], first + s.lane);
    }
  for (int j = 0; j < k; ++j)
    for (int n = 0; n < 8; ++n) {
      at_spot s = at_of_b(j, n, k, item);
      b[j][n] = at_float_of(kind, (const char *)lanes[s.lane].b + s.byte);
      if (kind == AT_TF32) at_rounded_to_tf32(b[j][n], first + s.lane);
    }
  for (int i = 0; i < 16; ++i)
    for (int n = 0; n < 8; ++n) {
      at_spot s = at_of_c(i, n, sum);
      char *c = (char *)lanes[s.lane].c + s.byte;
      float f = 0;
      if (sum == 4) memcpy(&f, c, 4);
      else f = at_float_of(AT_F16, c);
      for (int j = 0; j < k; ++j) f += a[i][j] * b[j][n];
      uint16_t h = at_to_half(f);
      if (sum == 4) memcpy(c, &f, 4);
      else memcpy(c, &h, 2);
    }
}

static void at_products_of_bytes(at_lane *lanes, int kind) {
  const bool a_signed = kind == AT_S8 || kind == AT_S8_U8, b_signed = kind == AT_S8 || kind == AT_U8_S8;
  for (int i = 0; i < 16; ++i)
    for (int n = 0; n < 8; ++n) {
      at_spot s = at_of_c(i, n, 4);
      char *c = (char *)lanes[s.lane].c + s.byte;
      uint32_t sum;  // wraps, as without .satfinite
      memcpy(&sum, c, 4);
      for (int j = 0; j < 32; ++j) {
        at_spot p = at_of_a(i, j, 32, 1), q = at_of_b(j, n, 32, 1);
        int x = ((const uint8_t *)lanes[p.lane].a)[p.byte], y = ((const uint8_t *)lanes[q.lane].b)[q.byte];
        sum += (a_signed ? (int8_t)x : x) * (b_signed ? (int8_t)y : y);
      }
      memcpy(c, &sum, 4);
    }
}

static void at_multiplied(at_lane *lanes, int first) {
  int kind = lanes[0].at;
  if (kind >= AT_S8) at_products_of_bytes(lanes, kind);
  else at_products_of_floats(lanes, first, kind);
}

void at_mma(int line, int kind, void *c, void *a, void *b) {
  static const char *const names[] = {"mma of float16", "mma of float16 in float16", "mma of bfloat16",
                                      "mma of tf32", "mma of int8", "mma of uint8", "mma of int8 and uint8",
                                      "mma of uint8 and int8"};
  at_together(names[kind], line, at_multiplied, {a, b, c, kind});
}
