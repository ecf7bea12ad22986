// Search in pages opened from disk: browsers do not start workers there, so run the worker's script in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = [] // messages before the script has loaded
      const frame = Object.assign(document.createElement("iframe"), { hidden: true, title: "search" })
      const ready = () => {
        const inside = frame.contentWindow
        inside.postMessage = data => {
          const event = new MessageEvent("message", { data })
          this.dispatchEvent(event)
          this.onmessage?.(event)
        }
        inside.importScripts = (...urls) =>
          urls.reduce((before, source) => before.then(() => load(inside.document, source)), Promise.resolve())
        load(inside.document, url).then(() => {
          this.inside = inside
          this.waiting.forEach(data => this.postMessage(data))
        })
      }
      const attach = () => {
        document.body.append(frame)
        ready()
      }
      document.body ? attach() : addEventListener("DOMContentLoaded", attach)
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }

    terminate() {}
  }

function load(document, source) {
  return new Promise((done, failed) => {
    const script = Object.assign(document.createElement("script"), { src: source, onload: done, onerror: failed })
    document.head.append(script)
  })
}
