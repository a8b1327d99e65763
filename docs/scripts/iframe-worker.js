// Replaces web workers by hidden frames on pages that are opened as files, because browsers start no worker there.
// MkDocs Material's search runs in a worker. Its plugin `offline` would load such a script from another host.
(() => {
  "use strict";

  // The functions that the script of a worker calls.
  const inFrame = `
    window.postMessage = (data) => parent.postMessage(data, "*");
    window.importScripts = (...paths) => paths.reduce((before, path) => before.then(() => new Promise((done) => {
      const script = document.createElement("script");
      script.src = path;
      script.onload = done;
      document.body.appendChild(script);
    })), Promise.resolve());`;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === inner) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      inner.document.open();
      inner.document.write(`<html><body><script>${inFrame}<\/script><script src="${url}"><\/script></body></html>`);
      inner.document.close();
      this.ready = new Promise((done) => { inner.onload = done; });
    }

    postMessage(data) {
      this.ready.then(() => {
        const message = new MessageEvent("message", { data: structuredClone(data) });
        this.frame.contentWindow.dispatchEvent(message);
      });
    }

    terminate() {
      this.frame.remove();
    }
  }

  if (location.protocol === "file:") window.Worker = FrameWorker;
})();
