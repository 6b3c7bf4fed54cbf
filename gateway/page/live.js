// Polling while the page is visible and has the focus.

const EVERY_MS = 2000;
const AFTER_FAILURE_MS = 10000;
const SHARE_OF_TIME = 0.1;

/**
 * Calls `look` every two seconds, and less often if it returns "failed" or is slow, to keep the load low.
 * After "refused", only `now` calls it again.
 */
export class Live {
  constructor(look) {
    this.look = look;
    this.timer = 0;
    this.looking = this.refused = false;
    document.addEventListener("visibilitychange", () => this.again());
    window.addEventListener("focus", () => this.again());
  }

  get watched() {
    return document.visibilityState === "visible" && document.hasFocus();
  }

  again() {
    if (this.watched && !this.refused) this.now();
  }

  async now() {
    if (this.looking) return;
    clearTimeout(this.timer);
    this.looking = true;
    const began = performance.now();
    const went = await this.look();
    this.looking = false;
    this.refused = went === "refused";
    const rest = (performance.now() - began) / SHARE_OF_TIME;
    this.timer = setTimeout(() => this.again(), Math.max(went === "well" ? EVERY_MS : AFTER_FAILURE_MS, rest));
  }
}
