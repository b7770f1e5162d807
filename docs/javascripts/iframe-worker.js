// Search runs in a worker, and browsers refuse workers on pages that were opened from a disk.
// There, run it in a hidden frame instead. It has the four things that search uses of a worker.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.inner = frame.contentWindow;
    this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.inner.importScripts = (...urls) =>
      urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve());
    this.ready = this.load(url);
  }

  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.inner.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      script.onload = resolve;
      script.onerror = reject;
      this.inner.document.body.appendChild(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
