// Optimizer, reductions over flat arrays, casts and fingerprints.

#include <cmath>

#include "../harness.h"
#include "rlk/base/sha256.h"

namespace rlk::bench {
namespace {

constexpr int64_t kChecked = 100003;  // elements compared

Case adamw(Buffers& b, int64_t n) {
  Case c;
  c.bytes = static_cast<double>(n) * 30;
  AdamWArgs a{};
  a.master = b.normal_f32(n);
  a.m = b.normal_f32(n, 1e-3f);
  a.grad = b.normal_f32(n, 1e-3f);
  a.v = b.array<float>(n);
  a.weight = b.array<bf16>(n);
  a.n = n;
  a.lr = 1e-3f;
  a.beta1 = 0.9f;
  a.beta2 = 0.98f;
  a.eps = 1e-8f;
  a.weight_decay = 0.1f;
  a.bias1 = 10.0f;
  a.bias2 = 50.0f;
  a.grad_scale = 0.5f;
  auto master = b.host(a.master, kChecked), m = b.host(a.m, kChecked), v = b.host(a.v, kChecked),
       grad = b.host(a.grad, kChecked);
  c.run = [&b, a](Stream s, int) { b.ops().adamw(s, a); };
  c.verify = [=, &b]() mutable {
    AdamWArgs h = a;
    std::vector<bf16> weight(kChecked);
    h.master = master.data();
    h.m = m.data();
    h.v = v.data();
    h.grad = grad.data();
    h.weight = weight.data();
    h.n = kChecked;
    cpu_ops(4).adamw(nullptr, h);
    std::string miss = compare("master", b.host(a.master, kChecked), master, 1e-6f, 1e-3f);
    if (miss.empty()) miss = compare("v", b.host(a.v, kChecked), v, 1e-6f, 1e-12f);
    if (miss.empty())
      miss = compare("weight", floats(b.host(a.weight, kChecked)), floats(weight), 0x1p-7f, 1e-3f);
    return miss;
  };
  return c;
}

Case sum_squares(Buffers& b, int64_t n) {
  Case c;
  c.bytes = static_cast<double>(n) * 4;
  const float* x = b.normal_f32(n);
  double* out = b.array<double>((n + kNormTile - 1) / kNormTile);
  c.run = [=, &b](Stream s, int) { b.ops().sum_squares(s, {x, n, out}); };
  c.verify = [=, &b] {
    const auto h = b.host(x, kNormTile);
    double want = 0;
    for (float e : h) want += static_cast<double>(e) * e;
    const double got = b.host(out, 1)[0];
    return std::fabs(got - want) <= 1e-12 * want ? std::string() : "tile 0: " + std::to_string(got);
  };
  return c;
}

Case tree_add(Buffers& b, int64_t n, bool out_f32) {
  Case c;
  c.bytes = static_cast<double>(n) * (4 * kSlices + (out_f32 ? 4 : 2));
  TreeAddArgs a{};
  for (auto& part : a.part) part = b.normal_f32(n);
  a.count = kSlices;
  a.out = b.bytes(static_cast<size_t>(n) * 4);
  a.n = n;
  a.out_f32 = out_f32;
  c.run = [&b, a](Stream s, int) { b.ops().tree_add(s, a); };
  c.verify = [=, &b] {
    float p[kSlices];
    for (int i = 0; i < kSlices; ++i) p[i] = b.host(a.part[i], 1)[0];
    const float want = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
    const bool same = out_f32 ? b.host(static_cast<float*>(a.out), 1)[0] == want
                              : b.host(static_cast<bf16*>(a.out), 1)[0] == to_bf16(want);
    return same ? std::string() : std::string("element 0 differs from the tree");
  };
  return c;
}

Case cast(Buffers& b, int64_t n) {
  Case c;
  c.bytes = static_cast<double>(n) * 6;
  const float* x = b.normal_f32(n);
  bf16* y = b.array<bf16>(n);
  c.run = [=, &b](Stream s, int) { b.ops().cast(s, {x, y, n}); };
  c.verify = [=, &b] {
    const auto hx = b.host(x, kChecked);
    const auto hy = b.host(y, kChecked);
    for (size_t i = 0; i < hx.size(); ++i)
      if (!(hy[i] == to_bf16(hx[i]))) return "element " + std::to_string(i);
    return std::string();
  };
  return c;
}

Case init_normal(Buffers& b, int64_t n) {
  Case c;
  c.bytes = static_cast<double>(n) * 2;
  bf16* w = b.array<bf16>(n);
  c.run = [=, &b](Stream s, int) { b.ops().init_normal(s, {w, n, 3, 7, 11, 0.02f}); };
  c.verify = [=, &b] {
    std::vector<bf16> want(kChecked);
    cpu_ops(4).init_normal(nullptr, {want.data(), kChecked, 3, 7, 11, 0.02f});
    return compare("w", floats(b.host(w, kChecked)), floats(want), 0x1p-7f, 1e-6f);
  };
  return c;
}

Case init_uniform(Buffers& b, int64_t n) {
  Case c;
  c.bytes = static_cast<double>(n) * 2;
  bf16* w = b.array<bf16>(n);
  const InitUniformArgs args{w, n / 4096, 4096, 3, 8192, 11, 0.0f, 1e-6f};
  c.run = [=, &b](Stream s, int) { b.ops().init_uniform(s, args); };
  c.verify = [=, &b] {
    std::vector<bf16> want(kChecked / 4096 * 4096);
    InitUniformArgs head = args;
    head.w = want.data();
    head.rows = kChecked / 4096;
    cpu_ops(4).init_uniform(nullptr, head);
    return compare("w", floats(b.host(w, static_cast<int64_t>(want.size()))), floats(want), 0, 0);
  };
  return c;
}

Case sha256(Buffers& b, int64_t bytes, int64_t piece) {
  Case c;
  const void* data = b.normal(bytes / 2);
  const int64_t pieces = bytes / piece;
  const Sha256Range* ranges = b.copy_of(std::vector<Sha256Range>{{data, bytes, 0}});
  uint8_t* digest = b.array<uint8_t>(pieces * 32);
  c.bytes = static_cast<double>(bytes);
  c.run = [=, &b](Stream s, int) { b.ops().sha256_pieces(s, {ranges, 1, pieces, piece, digest}); };
  c.verify = [=, &b] {
    for (int64_t i : {int64_t{0}, pieces / 2, pieces - 1}) {
      const auto host = b.host(static_cast<const uint8_t*>(data) + i * piece, piece);
      const Digest want = rlk::sha256(host.data(), host.size());
      const auto got = b.host(digest + i * 32, 32);
      if (!std::equal(want.begin(), want.end(), got.begin())) return "piece " + std::to_string(i);
    }
    return std::string();
  };
  return c;
}

}  // namespace

void add_optimizer_cases(std::vector<NamedCase>& cases) {
  constexpr int64_t kLarge = int64_t{1} << 28;
  cases.push_back({"adamw", "n=268M", [](Buffers& b) { return adamw(b, kLarge); }});
  cases.push_back({"sum_squares", "n=268M", [](Buffers& b) { return sum_squares(b, kLarge); }});
  cases.push_back(
      {"tree_add", "n=67M 8 parts f32", [](Buffers& b) { return tree_add(b, kLarge / 4, true); }});
  cases.push_back({"tree_add", "n=67M 8 parts bf16",
                   [](Buffers& b) { return tree_add(b, kLarge / 4, false); }});
  cases.push_back({"cast", "n=268M", [](Buffers& b) { return cast(b, kLarge); }});
  cases.push_back({"init_normal", "n=268M", [](Buffers& b) { return init_normal(b, kLarge); }});
  cases.push_back({"init_uniform", "n=268M", [](Buffers& b) { return init_uniform(b, kLarge); }});
  for (const auto& [gib, kib] :
       {std::pair<int64_t, int64_t>{2, 1024}, {8, 1024}, {16, 1024}, {2, 256}, {2, 64}}) {
    cases.push_back({"sha256_pieces",
                     std::to_string(gib) + " GiB in pieces of " + std::to_string(kib) + " KiB",
                     [gib, kib](Buffers& b) { return sha256(b, gib << 30, kib << 10); }});
  }
}

}  // namespace rlk::bench
