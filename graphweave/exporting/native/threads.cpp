// Threads of an exported model, for callers that give none.
//
// The caller works itself and waits only for threads that have begun. So a loop ends even if no thread ever wakes, as in a
// process that was forked, and a run that finds the threads busy with another run works alone.

namespace {

struct Pool {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
  void (*task)(void*) = nullptr;
  void* data = nullptr;
  int32_t wanted = 0, inside = 0;  // threads that should still begin, and that have begun and not ended
  bool busy = false, ended = false;
  List<pthread_t> threads;

  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    pthread_mutex_lock(&mutex);
    ended = true;
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&mutex);
    for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  }

  static void* work(void* of) {
    Pool& pool = *static_cast<Pool*>(of);
    pthread_mutex_lock(&pool.mutex);
    while (!pool.ended) {
      if (pool.wanted == 0) {
        pthread_cond_wait(&pool.wake, &pool.mutex);
        continue;
      }
      --pool.wanted, ++pool.inside;
      void (*const task)(void*) = pool.task;
      void* const data = pool.data;
      pthread_mutex_unlock(&pool.mutex);
      task(data);
      pthread_mutex_lock(&pool.mutex);
      if (--pool.inside == 0) pthread_cond_signal(&pool.left);
    }
    pthread_mutex_unlock(&pool.mutex);
    return nullptr;
  }

  void enter(void (*shared)(void*), void* of, int32_t count) {
    pthread_mutex_lock(&mutex);
    if (busy) {
      pthread_mutex_unlock(&mutex);
      return shared(of);
    }
    busy = true;
    while (static_cast<int32_t>(threads.size()) < count - 1) {
      pthread_t made;
      if (pthread_create(&made, nullptr, work, this)) break;  // those that are there do the work
      threads.push_back(made);
    }
    task = shared, data = of, wanted = std::min(count - 1, static_cast<int32_t>(threads.size()));
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&mutex);
    shared(of);
    pthread_mutex_lock(&mutex);
    wanted = 0;
    while (inside > 0) pthread_cond_wait(&left, &mutex);
    busy = false;
    pthread_mutex_unlock(&mutex);
  }
};

thread_local Pool* pool_of_run = nullptr;

void enter_pool(void (*task)(void*), void* data, unsigned threads, unsigned) {
  pool_of_run->enter(task, data, static_cast<int32_t>(threads));
}

// The threads that loops of this run enter, for as long as this lives.
struct ThreadsOfRun {
  ThreadsOfRun(const gw_options* options, Pool* pool) {
    pool_of_run = pool;
    gw_enter_threads = options && options->parallel ? options->parallel : enter_pool;
  }
  ~ThreadsOfRun() { gw_enter_threads = nullptr, pool_of_run = nullptr; }
  ThreadsOfRun(const ThreadsOfRun&) = delete;
  ThreadsOfRun& operator=(const ThreadsOfRun&) = delete;
};

}  // namespace
