import { message } from "./message.js";

const show = text => { document.getElementById("message").textContent = text; };
show(message);
import.meta.hot.accept("./message.js", module => show(module.message));
