// Lists, shared objects and a lock, with as much of the standard ones as the runtime's library needs.
//
// The library is compiled when a machine is first used, while its user waits. With the standard ones, two thirds of that
// time went to their headers and instances. Whatever is kept here may be moved by moving its bytes, since none of it
// holds a pointer into itself. Where there is no memory for the few bytes of a list or an object, the process ends;
// memory as large as a graph is asked for elsewhere.

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#define GW_COLD __attribute__((noinline, cold))

namespace {

// Memory in place of `data`, with its bytes.
GW_COLD void* regrown(void* data, size_t nbytes) {
  void* const made = std::realloc(data, nbytes);
  if (!made) std::abort();
  return made;
}

template <typename T>
class List {
public:
  List() = default;
  explicit List(size_t count) {
    reserve(count);
    while (size_ < count) emplace_back();
  }
  List(const T* first, const T* last) { append(first, last); }
  List(const List& other) { append(other.begin(), other.end()); }
  List(List&& other) noexcept { swap(other); }
  List& operator=(List other) noexcept { return swap(other), *this; }
  ~List() {
    for (T& one : *this) one.~T();
    std::free(data_);
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](size_t at) { return data_[at]; }
  const T& operator[](size_t at) const { return data_[at]; }
  T& back() { return data_[size_ - 1]; }

  void swap(List& other) noexcept {
    std::swap(data_, other.data_), std::swap(size_, other.size_), std::swap(room_, other.room_);
  }
  void reserve(size_t count) {
    if (count <= room_) return;
    data_ = static_cast<T*>(regrown(static_cast<void*>(data_), count * sizeof(T)));
    room_ = count;
  }
  void append(const T* first, const T* last) {
    reserve(size_ + static_cast<size_t>(last - first));
    for (; first != last; ++first) new (data_ + size_++) T(*first);
  }
  template <typename... Parts>
  T& emplace_back(Parts&&... parts) {
    if (size_ == room_) reserve(size_ < 4 ? 4 : size_ * 2);
    return *new (data_ + size_++) T{std::forward<Parts>(parts)...};
  }
  void push_back(T one) { emplace_back(std::move(one)); }
  void remove(T* one) {
    one->~T();
    std::memmove(static_cast<void*>(one), one + 1, static_cast<size_t>(end() - one - 1) * sizeof(T));
    --size_;
  }

private:
  T* data_ = nullptr;
  size_t size_ = 0, room_ = 0;
};

// Lies before each shared object. All owners together count as one watcher.
struct alignas(16) Counts {
  int64_t owners = 1, watchers = 1;
};

inline Counts* counts_of(const void* object) { return static_cast<Counts*>(const_cast<void*>(object)) - 1; }

inline void unwatch(const void* object) {
  if (__atomic_sub_fetch(&counts_of(object)->watchers, 1, __ATOMIC_ACQ_REL) == 0) std::free(counts_of(object));
}

// One of the owners of a shared object, or of none.
template <typename T>
class Ref {
public:
  Ref() = default;
  Ref(decltype(nullptr)) {}
  explicit Ref(T* owned) : object_(owned) {}  // takes over an owner that is already counted
  Ref(const Ref& other) : object_(other.object_) {
    if (object_) __atomic_fetch_add(&counts_of(object_)->owners, 1, __ATOMIC_RELAXED);
  }
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  template <typename From>
  Ref(Ref<From> other) : object_(other.release()) {}
  Ref& operator=(Ref other) noexcept { return swap(other), *this; }
  ~Ref() {
    if (object_ && __atomic_sub_fetch(&counts_of(object_)->owners, 1, __ATOMIC_ACQ_REL) == 0) end(object_);
  }

  void swap(Ref& other) noexcept { std::swap(object_, other.object_); }
  T* release() noexcept { return std::exchange(object_, nullptr); }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const Ref& other) const { return object_ == other.object_; }

private:
  static GW_COLD void end(T* object) {
    object->~T();
    unwatch(object);
  }

  T* object_ = nullptr;
};

template <typename T, typename... Parts>
Ref<T> shared(Parts&&... parts) {
  auto* const counts = new (regrown(nullptr, sizeof(Counts) + sizeof(T))) Counts;
  return Ref<T>(new (counts + 1) T(std::forward<Parts>(parts)...));
}

// Tells whether a shared object still has an owner.
template <typename T>
class Watcher {
public:
  explicit Watcher(const Ref<T>& of) : object_(of.get()) {
    __atomic_fetch_add(&counts_of(object_)->watchers, 1, __ATOMIC_RELAXED);
  }
  Watcher(const Watcher& other) : object_(other.object_) {
    __atomic_fetch_add(&counts_of(object_)->watchers, 1, __ATOMIC_RELAXED);
  }
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher() { unwatch(object_); }

  bool expired() const { return __atomic_load_n(&counts_of(object_)->owners, __ATOMIC_ACQUIRE) == 0; }
  // Memory that is watched is not given away, so another object has another address.
  bool watches(const Ref<T>& other) const { return object_ == other.get(); }

private:
  const T* object_;
};

// Memory as large as a graph, or null, on a cache line. Pages of large memory are huge where the system gives such.
struct Memory {
  void* data;
  int64_t nbytes;

  explicit Memory(int64_t size) : nbytes(size) {
    const size_t whole = (static_cast<size_t>(std::max<int64_t>(size, 1)) + 63) / 64 * 64;
    data = std::aligned_alloc(64, whole);
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

struct Lock {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
};

struct Held {
  explicit Held(Lock* lock) : of(lock) { pthread_mutex_lock(&of->mutex); }
  ~Held() { pthread_mutex_unlock(&of->mutex); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  Lock* const of;
};

}  // namespace
