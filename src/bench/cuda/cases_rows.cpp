// Row ops at Qwen3-8B's shapes. Outputs are compared with the CPU backend's over the first rows.

#include <cmath>

#include "../harness.h"

namespace rlk::bench {
namespace {

constexpr int64_t kD = 4096, kF = 12288;
constexpr int kHeads = 32, kKvHeads = 8, kDh = 128;
constexpr int64_t kCheckedRows = 16;
constexpr float kBf16 =
    0x1p-7f;  // one unit in the last place: the backends' exp and sums differ in fp32

const Ops& cpu() {
  return cpu_ops(4);
}

Case rms_norm(Buffers& b, int64_t T, bool residual) {
  Case c;
  const double bytes = static_cast<double>(T) * kD * 2 * (residual ? 4 : 2);
  c.bytes = bytes + kD * 2;
  c.sets = sets_of(bytes);
  const bf16* w = b.normal(kD);
  const bf16* x = b.normal(T * kD * c.sets);
  const bf16* delta = residual ? b.normal(T * kD * c.sets) : nullptr;
  bf16* x_out = residual ? b.array<bf16>(T * kD * c.sets) : nullptr;
  bf16* y = b.array<bf16>(T * kD * c.sets);
  const auto args = [=](int set) {
    const int64_t at = set * T * kD;
    return RmsNormArgs{x + at,
                       residual ? delta + at : nullptr,
                       residual ? x_out + at : nullptr,
                       w,
                       y + at,
                       nullptr,
                       T,
                       kD,
                       1e-6f};
  };
  c.run = [&b, args](Stream s, int set) { b.ops().rms_norm(s, args(set)); };
  c.verify = [&b, args, T] {
    RmsNormArgs a = args(0);
    a.T = std::min(T, kCheckedRows);
    const int64_t n = a.T * kD;
    const auto got = b.host(a.y, n);
    const auto hx = b.host(a.x, n), hw = b.host(a.w, kD);
    std::vector<bf16> hd, ho(static_cast<size_t>(n)), want(static_cast<size_t>(n));
    if (a.delta != nullptr) {
      hd = b.host(a.delta, n);
      a.delta = hd.data();
      a.x_out = ho.data();
    }
    a.x = hx.data();
    a.w = hw.data();
    a.y = want.data();
    cpu().rms_norm(nullptr, a);
    return compare("y", floats(got), floats(want), kBf16, 1e-3f);
  };
  return c;
}

Case rms_norm_bwd(Buffers& b, int64_t T) {
  Case c;
  const double bytes = static_cast<double>(T) * kD * (4 + 2 + 4 + 4);
  c.bytes = bytes;
  c.sets = sets_of(bytes);
  const int64_t n = T * kD * c.sets;
  const float* dy = b.normal_f32(n);
  const bf16* x = b.normal(n);
  const bf16* w = b.normal(kD);
  const float* rstd = b.copy_of(std::vector<float>(static_cast<size_t>(T * c.sets), 1.01f));
  float* dres = b.normal_f32(n);
  // The accumulation target changes from run to run: it is judged from a copy of its first rows.
  const auto before = b.host(dres, std::min(T, kCheckedRows) * kD);
  const auto args = [=](int set) {
    const int64_t at = set * T * kD;
    return RmsNormBwdArgs{dy + at, x + at, w, rstd + set * T, dres + at, T, kD, true};
  };
  c.run = [&b, args](Stream s, int set) { b.ops().rms_norm_bwd(s, args(set)); };
  c.verify = [&b, args, before, T] {
    RmsNormBwdArgs a = args(0);
    a.T = std::min(T, kCheckedRows);
    const auto got = b.host(a.dres, a.T * kD);
    auto want = before;
    const auto hdy = b.host(a.dy, a.T * kD), hr = b.host(a.rstd, a.T);
    const auto hx = b.host(a.x, a.T * kD), hw = b.host(a.w, kD);
    a = {hdy.data(), hx.data(), hw.data(), hr.data(), want.data(), a.T, kD, true};
    cpu().rms_norm_bwd(nullptr, a);
    return compare("dres", got, want, 1e-5f, 1.0f);
  };
  return c;
}

Leaves even_leaves(int64_t T) {
  Leaves l{kSlices, {}};
  for (int i = 0; i <= kSlices; ++i) l.begin[i] = T / kSlices * i;
  return l;
}

Case rms_norm_wgrad(Buffers& b, int64_t T) {
  Case c;
  const double bytes = static_cast<double>(T) * kD * 6;
  c.bytes = bytes;
  c.sets = sets_of(bytes);
  const int64_t n = T * kD * c.sets;
  const float* dy = b.normal_f32(n);
  const bf16* x = b.normal(n);
  const float* rstd = b.copy_of(std::vector<float>(static_cast<size_t>(T * c.sets), 1.01f));
  float* dw = b.array<float>(kD);
  RmsNormWgradArgs base{dy, x, rstd, dw, kD, even_leaves(T), nullptr};
  base.workspace = b.bytes(b.ops().rms_norm_wgrad_workspace(base));
  const auto args = [=](int set) {
    RmsNormWgradArgs a = base;
    a.dy += set * T * kD;
    a.x += set * T * kD;
    a.rstd += set * T;
    return a;
  };
  c.run = [&b, args](Stream s, int set) { b.ops().rms_norm_wgrad(s, args(set)); };
  c.verify = [&b, args, T] {
    const RmsNormWgradArgs a = args(0);
    const auto got = b.host(a.dw, kD);
    const auto hdy = b.host(a.dy, T * kD);
    const auto hx = b.host(a.x, T * kD);
    std::vector<float> want(kD);
    for (int64_t d = 0; d < kD; ++d) {
      double sum = 0;
      for (int64_t t = 0; t < T; ++t)
        sum += static_cast<double>(hdy[static_cast<size_t>(t * kD + d)]) *
               to_float(hx[static_cast<size_t>(t * kD + d)]) * 1.01f;
      want[static_cast<size_t>(d)] = static_cast<float>(sum);
    }
    return compare("dw", got, want, 1e-5f, std::sqrt(static_cast<float>(T)));
  };
  return c;
}

std::vector<float> rope_table(int64_t positions) {
  std::vector<float> table(static_cast<size_t>(positions * kDh));
  for (int64_t p = 0; p < positions; ++p) {
    for (int i = 0; i < kDh / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(1e6, -2.0 * i / kDh);
      table[static_cast<size_t>(p * kDh + 2 * i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * kDh + 2 * i + 1)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

constexpr int64_t kQkvWidth = (kHeads + 2 * kKvHeads) * kDh;

Case qk_norm_rope(Buffers& b, int64_t T) {
  Case c;
  const double bytes = static_cast<double>(T) * kQkvWidth * 2 * 2;
  c.bytes = bytes;
  c.sets = sets_of(bytes);
  const bf16* qkv = b.normal(T * kQkvWidth * c.sets);
  const bf16* qw = b.normal(kDh);
  const bf16* kw = b.normal(kDh);
  std::vector<int32_t> position(static_cast<size_t>(T));
  for (int64_t t = 0; t < T; ++t) position[static_cast<size_t>(t)] = static_cast<int32_t>(t);
  const auto table = rope_table(T);
  const float* rope = b.copy_of(table);
  const int32_t* positions = b.copy_of(position);
  bf16* q = b.array<bf16>(T * kHeads * kDh * c.sets);
  bf16* k = b.array<bf16>(T * kKvHeads * kDh * c.sets);
  bf16* v = b.array<bf16>(T * kKvHeads * kDh * c.sets);
  const auto args = [=](int set) {
    QkNormRopeArgs a{};
    a.qkv = qkv + set * T * kQkvWidth;
    a.q_weight = qw;
    a.k_weight = kw;
    a.position = positions;
    a.rope = rope;
    a.q = q + set * T * kHeads * kDh;
    a.k = k + set * T * kKvHeads * kDh;
    a.v = v + set * T * kKvHeads * kDh;
    a.T = T;
    a.slices = kSlices;
    a.hq = kHeads / kSlices;
    a.hkv = kKvHeads / kSlices;
    a.Dh = kDh;
    a.eps = 1e-6f;
    a.ready = T <= 64;  // as in decode
    return a;
  };
  c.run = [&b, args](Stream s, int set) { b.ops().qk_norm_rope(s, args(set)); };
  c.verify = [&b, args, table, position, T] {
    QkNormRopeArgs a = args(0);
    a.T = std::min(T, kCheckedRows);
    const auto gq = b.host(a.q, a.T * kHeads * kDh), gk = b.host(a.k, a.T * kKvHeads * kDh);
    const auto hx = b.host(a.qkv, a.T * kQkvWidth), hqw = b.host(a.q_weight, kDh),
               hkw = b.host(a.k_weight, kDh);
    auto wq = gq, wk = gk, wv = gk;
    a.qkv = hx.data();
    a.q_weight = hqw.data();
    a.k_weight = hkw.data();
    a.position = position.data();
    a.rope = table.data();
    a.q = wq.data();
    a.k = wk.data();
    a.v = wv.data();
    cpu().qk_norm_rope(nullptr, a);
    const std::string miss = compare("q", floats(gq), floats(wq), 2 * kBf16, 1.0f);
    return miss.empty() ? compare("k", floats(gk), floats(wk), 2 * kBf16, 1.0f) : miss;
  };
  return c;
}

Case qk_norm_rope_bwd(Buffers& b, int64_t T) {
  Case c;
  const double bytes =
      static_cast<double>(T) * (3 * kQkvWidth - kKvHeads * kDh) * 2;  // nobody needs v's x
  c.bytes = bytes;
  c.sets = sets_of(bytes);
  QkNormRopeBwdArgs base{};
  base.qkv = b.normal(T * kQkvWidth * c.sets);
  base.q_weight = b.normal(kDh);
  base.k_weight = b.normal(kDh);
  std::vector<int32_t> position(static_cast<size_t>(T));
  for (int64_t t = 0; t < T; ++t) position[static_cast<size_t>(t)] = static_cast<int32_t>(t);
  base.position = b.copy_of(position);
  const auto table = rope_table(T);
  base.rope = b.copy_of(table);
  base.dq = b.normal(T * kHeads * kDh * c.sets);
  base.dk = b.normal(T * kKvHeads * kDh * c.sets);
  base.dv = b.normal(T * kKvHeads * kDh * c.sets);
  base.dqkv = b.array<bf16>(T * kQkvWidth * c.sets);
  base.q_dw = b.array<float>(64 * kDh);
  base.k_dw = b.array<float>(64 * kDh);
  base.T = T;
  base.slices = kSlices;
  base.hq = kHeads / kSlices;
  base.hkv = kKvHeads / kSlices;
  base.Dh = kDh;
  base.eps = 1e-6f;
  base.leaves = even_leaves(T);
  base.workspace = b.bytes(b.ops().qk_norm_rope_bwd_workspace(base));
  const auto args = [=](int set) {
    QkNormRopeBwdArgs a = base;
    a.qkv += set * T * kQkvWidth;
    a.dqkv += set * T * kQkvWidth;
    a.dq += set * T * kHeads * kDh;
    a.dk += set * T * kKvHeads * kDh;
    a.dv += set * T * kKvHeads * kDh;
    return a;
  };
  c.run = [&b, args](Stream s, int set) { b.ops().qk_norm_rope_bwd(s, args(set)); };
  c.verify = [&b, args, table, position, T] {
    QkNormRopeBwdArgs a = args(0);
    const auto got = b.host(a.dqkv, T * kQkvWidth);
    const auto gw = b.host(a.q_dw, 64 * kDh);
    const auto hx = b.host(a.qkv, T * kQkvWidth), hq = b.host(a.dq, T * kHeads * kDh),
               hk = b.host(a.dk, T * kKvHeads * kDh), hv = b.host(a.dv, T * kKvHeads * kDh),
               hqw = b.host(a.q_weight, kDh), hkw = b.host(a.k_weight, kDh);
    auto want = got;
    auto ww = gw, wk = gw;
    std::vector<char> work(cpu().qk_norm_rope_bwd_workspace(a) + 1);
    a.qkv = hx.data();
    a.dq = hq.data();
    a.dk = hk.data();
    a.dv = hv.data();
    a.q_weight = hqw.data();
    a.k_weight = hkw.data();
    a.position = position.data();
    a.rope = table.data();
    a.dqkv = want.data();
    a.q_dw = ww.data();
    a.k_dw = wk.data();
    a.workspace = work.data();
    cpu().qk_norm_rope_bwd(nullptr, a);
    const std::string miss = compare("dqkv", floats(got), floats(want), 2 * kBf16, 1.0f);
    return miss.empty() ? compare("q_dw", gw, ww, 1e-4f, 100.0f) : miss;
  };
  return c;
}

Case swiglu(Buffers& b, int64_t T, bool backward) {
  Case c;
  const double bytes = static_cast<double>(T) * kF * 2 * (backward ? 5 : 3);
  c.bytes = bytes;
  c.sets = sets_of(bytes);
  const bf16* gate_up = b.normal(T * 2 * kF * c.sets, 2.0f);
  bf16* act = backward ? b.normal(T * kF * c.sets) : b.array<bf16>(T * kF * c.sets);
  bf16* d = backward ? b.array<bf16>(T * 2 * kF * c.sets) : nullptr;
  c.run = [=, &b](Stream s, int set) {
    if (backward)
      b.ops().swiglu_bwd(s, {gate_up + set * T * 2 * kF, act + set * T * kF, d + set * T * 2 * kF,
                             T, kF / kSlices, kSlices});
    else
      b.ops().swiglu(s, {gate_up + set * T * 2 * kF, act + set * T * kF, T, kF / kSlices, kSlices});
  };
  c.verify = [=, &b] {
    const int64_t rows = std::min(T, kCheckedRows);
    const auto hg = b.host(gate_up, rows * 2 * kF), ha = b.host(act, rows * kF);
    std::vector<bf16> want(static_cast<size_t>(rows * kF * (backward ? 2 : 1)));
    if (backward) {
      cpu().swiglu_bwd(nullptr, {hg.data(), ha.data(), want.data(), rows, kF / kSlices, kSlices});
      return compare("d_gate_up", floats(b.host(d, rows * 2 * kF)), floats(want), kBf16, 1e-3f);
    }
    cpu().swiglu(nullptr, {hg.data(), want.data(), rows, kF / kSlices, kSlices});
    return compare("act", floats(ha), floats(want), kBf16, 1e-3f);
  };
  return c;
}

Case embedding(Buffers& b, int64_t T) {
  constexpr int64_t kRows = 19072;
  Case c;
  c.bytes = static_cast<double>(T) * kD * 4;
  c.sets = 1;
  const bf16* table = b.normal(kRows * kSlices * kD);
  std::vector<int32_t> ids(static_cast<size_t>(T));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % (kRows * 8));
  EmbeddingArgs a{};
  for (int v = 0; v < kSlices; ++v) a.slice[v] = table + v * kRows * kD;
  a.slice_rows = kRows;
  a.ids = b.copy_of(ids);
  a.y = b.array<bf16>(T * kD);
  a.T = T;
  a.D = kD;
  c.run = [&b, a](Stream s, int) { b.ops().embedding(s, a); };
  c.verify = [&b, a, ids, table, T] {
    for (int64_t t = 0; t < T; t += 511) {
      const auto got = b.host(a.y + t * kD, kD);
      if (got != b.host(table + ids[static_cast<size_t>(t)] * kD, kD))
        return "row " + std::to_string(t) + " differs";
    }
    return std::string();
  };
  return c;
}

}  // namespace

void add_row_cases(std::vector<NamedCase>& cases) {
  const auto add = [&](const char* op, int64_t T, std::function<Case(Buffers&)> make) {
    cases.push_back({op, "T=" + std::to_string(T) + " D=4096", std::move(make)});
  };
  for (int64_t T : {8, 64, 4096})
    add("rms_norm+residual", T, [T](Buffers& b) { return rms_norm(b, T, true); });
  add("rms_norm", 4096, [](Buffers& b) { return rms_norm(b, 4096, false); });
  add("rms_norm_bwd", 4096, [](Buffers& b) { return rms_norm_bwd(b, 4096); });
  add("rms_norm_wgrad", 8192, [](Buffers& b) { return rms_norm_wgrad(b, 8192); });
  for (int64_t T : {8, 4096})
    add("qk_norm_rope", T, [T](Buffers& b) { return qk_norm_rope(b, T); });
  add("qk_norm_rope_bwd", 4096, [](Buffers& b) { return qk_norm_rope_bwd(b, 4096); });
  for (int64_t T : {8, 4096}) add("swiglu", T, [T](Buffers& b) { return swiglu(b, T, false); });
  add("swiglu_bwd", 4096, [](Buffers& b) { return swiglu(b, 4096, true); });
  add("embedding", 8192, [](Buffers& b) { return embedding(b, 8192); });
}

}  // namespace rlk::bench
