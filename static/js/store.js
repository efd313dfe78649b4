// Conversations, kept in IndexedDB; in memory only where the browser allows nothing else.
//
// Every tab has its own copy of the conversation it shows. Writers raise `rev`; one who finds a rev that it has not
// seen keeps its own version as a new conversation, so that neither tab's words are lost.

const DATABASE = "streamgen";
const STORE = "conversations";
const MAX_CONVERSATIONS = 200;
const MAX_EVICTIONS = 5;

export function newConversation(settings) {
  const now = Date.now();
  return { id: randomId(), title: "", created: now, updated: now, rev: 0, settings: { ...settings }, messages: [] };
}

export function newMessage(role, content, fields = {}) {
  return { id: randomId(), role, content, ...fields };
}

function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const asPromise = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

const finished = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new DOMException("aborted", "AbortError"));
    transaction.onerror = () => reject(transaction.error);
  });

const isQuota = (error) => error?.name === "QuotaExceededError" || error?.inner?.name === "QuotaExceededError";

/** Events: "changed" (detail: id, from another tab), "deleted" (likewise), "trouble" (detail: a message for people). */
export class Store extends EventTarget {
  #database = null;
  #memory = new Map();
  #channel = null;
  #saving = Promise.resolve();

  async open() {
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      this.#database = await asPromise(request);
      // Another tab with a newer page wants to upgrade: let it.
      this.#database.onversionchange = () => this.#database.close();
    } catch {
      this.#trouble("This browser does not let the page store anything: conversations are gone when you close it.");
    }
    if (typeof BroadcastChannel === "function") {
      this.#channel = new BroadcastChannel("streamgen.conversations");
      this.#channel.onmessage = ({ data }) => this.dispatchEvent(new CustomEvent(data.what, { detail: data.id }));
    }
  }

  /** All of them, newest first, without their messages. */
  async list() {
    const all = this.#database ? await asPromise(this.#read().getAll()) : [...this.#memory.values()];
    return all.map(({ id, title, updated }) => ({ id, title, updated })).sort((a, b) => b.updated - a.updated);
  }

  /** One of them, as this tab's own copy; undefined if there is none. */
  async get(id) {
    const found = this.#database ? await asPromise(this.#read().get(id)) : this.#memory.get(id);
    return found && structuredClone(found);
  }

  /**
   * Write a conversation, and raise its rev. Returns false if another tab had written it meanwhile: then it was
   * given a new id, and both versions are kept. Never throws: trouble is told as an event.
   */
  save(conversation) {
    // One after the other: each has to see the rev that the one before it wrote.
    const saved = this.#saving.then(() => this.#save(conversation));
    this.#saving = saved;
    return saved;
  }

  async #save(conversation) {
    if (!this.#database) {
      conversation.rev += 1;
      this.#memory.set(conversation.id, structuredClone(conversation));
      return true;
    }
    for (let attempt = 0; ; attempt += 1) {
      try {
        const own = await this.#write(conversation);
        this.#tell("changed", conversation.id);
        if (attempt === 0) await this.#bound();
        return own;
      } catch (error) {
        if (!isQuota(error) || attempt >= MAX_EVICTIONS || !(await this.#evictOldest(conversation.id))) {
          this.#trouble(
            isQuota(error)
              ? "The browser's storage is full: this conversation is not being saved. Delete others to make room."
              : `The conversation could not be saved: ${error.message}`,
          );
          return true;
        }
      }
    }
  }

  async delete(id) {
    this.#memory.delete(id);
    if (this.#database) {
      const transaction = this.#database.transaction(STORE, "readwrite");
      transaction.objectStore(STORE).delete(id);
      await finished(transaction);
    }
    this.#tell("deleted", id);
  }

  async #write(conversation) {
    const transaction = this.#database.transaction(STORE, "readwrite");
    const store = transaction.objectStore(STORE);
    const stored = await asPromise(store.get(conversation.id));
    // A deleted one that is still written here comes back: its words are in use.
    const own = !stored || stored.rev === conversation.rev;
    const written = own ? conversation : { ...conversation, id: randomId(), rev: 0 };
    const rev = written.rev + 1;
    store.put({ ...structuredClone(written), rev });
    await finished(transaction);
    Object.assign(conversation, { id: written.id, rev });
    return own;
  }

  async #bound() {
    const count = await asPromise(this.#read().count());
    for (let i = MAX_CONVERSATIONS; i < count; i += 1) await this.#evictOldest(null);
  }

  async #evictOldest(keep) {
    const oldest = (await this.list()).filter(({ id }) => id !== keep).at(-1);
    if (!oldest) return false;
    await this.delete(oldest.id);
    this.dispatchEvent(new CustomEvent("deleted", { detail: oldest.id }));
    return true;
  }

  #read() {
    return this.#database.transaction(STORE).objectStore(STORE);
  }

  #tell(what, id) {
    this.#channel?.postMessage({ what, id });
  }

  #trouble(message) {
    this.dispatchEvent(new CustomEvent("trouble", { detail: message }));
  }
}
