// Amounts and times in words.

const UNITS = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

export function bytes(amount) {
  if (amount === null || amount === undefined) return "–";
  let unit = 0;
  let value = amount;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${short(value)}${UNITS[unit]}`;
}

export function cores(millicpu) {
  if (millicpu === null || millicpu === undefined) return "–";
  return millicpu < 1000 ? `${Math.round(millicpu)}m` : short(millicpu / 1000);
}

/** Three digits at most: 1.52, 15.2, 152; without zeros that say nothing. */
function short(value) {
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}

export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "";
}

export function ago(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  if (whole < 60) return `${whole} s ago`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ago`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)} h ago`;
  return `${Math.floor(whole / 86400)} days ago`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

export function iso(at) {
  return new Date(at * 1000).toISOString();
}

export function moment(at) {
  return new Date(at * 1000).toLocaleString([], { hour12: false });
}
