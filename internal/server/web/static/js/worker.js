// The shared worker: it leads the pages of a browser, as live.js says.
import { lead } from "./live.js";

lead();
