// Search of the site runs in a worker, which browsers do not start for a page that is opened as a file. There it runs in
// a hidden frame of the page instead. The theme asks for a script with this name, and by default for one of a network.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.srcdoc =
        "<script>postMessage = (data) => frameElement.answer(data)</script>" +
        `<script src="${new URL(url, location.href)}"></script>`;
      this.started = new Promise((resolve) => {
        frame.onload = () => resolve(frame.contentWindow);
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      const inside = await this.started;
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
