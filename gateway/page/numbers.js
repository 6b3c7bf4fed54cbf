// Formats figures for display.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number) => whole.format(number);

export const compact = (number) => short.format(number);

export const percent = (share) => `${Math.round(share * 100)} %`;

export function bytes(size) {
  const power = size < 1000 ? 0 : Math.min(3, Math.floor(Math.log10(size) / 3));
  const scaled = size / 1000 ** power;
  return `${power && scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${["B", "kB", "MB", "GB"][power]}`;
}

export function duration(ms) {
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

/** Axis ticks from 0 to `end`, at most `wanted` steps of 1, 2 or 5 times a power of ten. */
export function ticks(end, wanted) {
  const power = 10 ** Math.floor(Math.log10(end / wanted));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => end / size <= wanted);
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, number) => number * step);
}
