// The file, all numbers little-endian:
//
//     8 bytes   "outrider"
//     u32 u32   version, count of sections
//     u64 u64   bytes of the whole file, and of `about`
//     sections  u64 offset, u64 bytes, u64 XXH64 of these bytes, u32 type, u32 bytes of the name
//     names     one after another
//     about
//     u64       XXH64 of all bytes before
//     numbers   at their offsets, multiples of 64
#include "packed_weights.h"

#include "checksum.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace outrider {
namespace {

static_assert(std::endian::native == std::endian::little, "files are mapped as they are");

constexpr char kMagic[8] = {'o', 'u', 't', 'r', 'i', 'd', 'e', 'r'};
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kAlign = 64;
constexpr std::size_t kHead = 32, kEntry = 32;

constexpr std::size_t align(std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

[[noreturn]] void refuse(const std::string& reason) {
  throw std::invalid_argument("this is not a packed model, or a damaged one: " + reason);
}

// Reads numbers and text from the front of a file; throws at its end.
class Reader {
 public:
  explicit Reader(std::span<const unsigned char> bytes) : left_(bytes) {}

  std::span<const unsigned char> take(std::size_t count) {
    if (count > left_.size()) refuse("it is truncated");
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text(std::size_t count) {
    const auto taken = take(count);
    return {taken.begin(), taken.end()};
  }
  std::size_t left() const { return left_.size(); }

 private:
  std::span<const unsigned char> left_;
};

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

PackedWeights::PackedWeights(const std::filesystem::path& path)
    : file_(std::make_unique<MappedFile>(path)) {
  read_sections();
}

void PackedWeights::read_sections() {
  struct Entry {
    std::uint64_t offset, bytes, checksum;
    std::uint32_t type, name;
  };
  const std::span<const unsigned char> all{file_->data(), file_->size()};
  Reader reader(all);
  const auto magic = reader.take(sizeof kMagic);
  if (std::memcmp(magic.data(), kMagic, sizeof kMagic) != 0) refuse("wrong magic number");
  const auto version = reader.number<std::uint32_t>();
  if (version != kVersion)
    throw std::invalid_argument("the packed model has version " + std::to_string(version) +
                                ", expected " + std::to_string(kVersion));
  const auto count = reader.number<std::uint32_t>();
  if (reader.number<std::uint64_t>() != all.size()) refuse("wrong file size");
  const auto about = reader.number<std::uint64_t>();
  if (count > reader.left() / kEntry) refuse("it is truncated");
  std::vector<Entry> entries(count);
  for (Entry& entry : entries)
    entry = {reader.number<std::uint64_t>(), reader.number<std::uint64_t>(),
             reader.number<std::uint64_t>(), reader.number<std::uint32_t>(),
             reader.number<std::uint32_t>()};
  for (const Entry& entry : entries) {
    if (entry.type >= kNumberTypes) refuse("a section has an unknown type");
    const auto type = static_cast<NumberType>(entry.type);
    if (entry.offset % kAlign != 0 || entry.offset > all.size() ||
        entry.bytes > all.size() - entry.offset)
      refuse("a section is out of range");
    sums_.push_back({all.subspan(entry.offset, entry.bytes), entry.checksum});
    std::string name = reader.text(entry.name);
    if (!sections_.emplace(name, PackedSection{type, all.subspan(entry.offset, entry.bytes)})
             .second)
      refuse("a section is repeated");
    names_.push_back(std::move(name));
  }
  if (about > reader.left()) refuse("it is truncated");
  about_ = reader.text(static_cast<std::size_t>(about));
  const auto front = all.first(all.size() - reader.left());
  if (reader.number<std::uint64_t>() != xxh64(front)) refuse("wrong checksum of the header");
}

void PackedWeights::verify() {
  if (verified_) return;
  for (const Sum& sum : sums_)
    if (file_->checksum(sum.bytes) != sum.checksum) refuse("wrong checksum of a section");
  verified_ = true;
}

const PackedSection* PackedWeights::find(const std::string& name, NumberType type,
                                         std::size_t bytes) const {
  const auto found = sections_.find(name);
  if (found == sections_.end()) return nullptr;
  if (found->second.type != type || found->second.bytes.size() != bytes)
    throw std::invalid_argument("'" + name + "' is packed for another model");
  return &found->second;
}

Buffer<unsigned char> PackedWeights::zeros(const std::string& name, std::size_t bytes) const {
  if (!arrays_) throw std::invalid_argument("the packed model lacks '" + name + "'");
  Buffer<unsigned char> made(bytes);
  if (bytes > 0) std::memset(made.data(), 0, bytes);
  return made;
}

const PackedSection& PackedWeights::insert(const std::string& name, NumberType type,
                                           Buffer<unsigned char> bytes) {
  names_.push_back(name);
  owned_.push_back(std::move(bytes));
  const PackedSection section{type, {owned_.back().data(), owned_.back().size()}};
  return sections_.emplace(name, section).first->second;
}

std::span<const float> PackedWeights::floats(const std::string& name,
                                             const std::vector<int>& shape) {
  const std::size_t size = size_of(shape);
  return get<float>(name, size, [&](const Weights& arrays, float* out) {
    arrays.get(name, shape).read(0, size, out);
  });
}

PackedTable PackedWeights::table(const std::string& name, const std::vector<int>& shape) {
  const PackedSection numbers = table_numbers(name, shape);
  if (numbers.type != NumberType::int8) return {numbers, {}};
  const auto rows = static_cast<std::size_t>(shape.front());
  return {numbers, get<float>(name + ".scales", rows, [&](const Weights& arrays, float* out) {
            const Array& array = arrays.get(name, shape);
            Buffer<std::int8_t> bytes(static_cast<std::size_t>(shape.back()));
            for (std::size_t r = 0; r < rows; ++r) out[r] = array.read_bytes(r, bytes.data());
          })};
}

const PackedSection& PackedWeights::table_numbers(const std::string& name,
                                                  const std::vector<int>& shape) {
  const std::size_t size = size_of(shape);
  if (const auto found = sections_.find(name); found != sections_.end()) {
    const NumberType type = found->second.type;
    if (!is_float(type) && type != NumberType::int8)
      throw std::invalid_argument("'" + name + "' is packed for another model");
    return *find(name, type, size * size_of(type));
  }
  if (!arrays_) throw std::invalid_argument("the packed model lacks '" + name + "'");
  const Array& array = arrays_->get(name, shape);
  const NumberType type = array.exact_type();
  Buffer<unsigned char> made(size * size_of(type));
  if (type == NumberType::int8) {
    std::memcpy(made.data(), array.data, size);
    return insert(name, type, std::move(made));
  }
  std::vector<float> row(static_cast<std::size_t>(shape.back()));
  for (std::size_t at = 0; at < size; at += row.size()) {
    array.read(at, row.size(), row.data());
    narrow(row.data(), row.size(), type, made.data() + at * size_of(type));
  }
  return insert(name, type, std::move(made));
}

std::size_t PackedWeights::bytes() const {
  std::size_t total = 0;
  for (const auto& [name, section] : sections_) total += section.bytes.size();
  return total;
}

void PackedWeights::save(const std::filesystem::path& path, const std::string& about) const {
  std::string head(kMagic, sizeof kMagic), names;
  for (const std::string& name : names_) names += name;
  std::size_t end =
      align(kHead + kEntry * names_.size() + names.size() + about.size() + sizeof(std::uint64_t));
  std::string entries;
  for (const std::string& name : names_) {
    const PackedSection& section = sections_.at(name);
    append<std::uint64_t>(entries, end);
    append<std::uint64_t>(entries, section.bytes.size());
    append(entries, xxh64(section.bytes));
    append(entries, static_cast<std::uint32_t>(section.type));
    append(entries, static_cast<std::uint32_t>(name.size()));
    end = align(end + section.bytes.size());
  }
  append(head, kVersion);
  append(head, static_cast<std::uint32_t>(names_.size()));
  append<std::uint64_t>(head, end);
  append<std::uint64_t>(head, about.size());
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const auto write = [&](const void* bytes, std::size_t count) {
    constexpr char kZeros[kAlign] = {};
    file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
    file.write(kZeros, static_cast<std::streamsize>(align(count) - count));
  };
  std::string all = head + entries + names + about;
  append(all, xxh64({reinterpret_cast<const unsigned char*>(all.data()), all.size()}));
  write(all.data(), all.size());
  for (const std::string& name : names_) {
    const PackedSection& section = sections_.at(name);
    write(section.bytes.data(), section.bytes.size());
  }
  file.close();
  if (!file) throw std::system_error(errno != 0 ? errno : EIO, std::generic_category(), "save");
}

}  // namespace outrider
