// Passkeys: their use and their registration, with the forms of JSON that browsers convert themselves.
import { ask } from "./session.js";

/** Uses a passkey. @param {any} options of PublicKeyCredentialRequestOptionsJSON @returns {Promise<any>} the assertion */
export async function usePasskey(options) {
  const publicKey = /** @type {any} */ (PublicKeyCredential).parseRequestOptionsFromJSON(options);
  return answered(await navigator.credentials.get({ publicKey }));
}

/** Registers a passkey of the user who is logged in. @param {string} name @returns {Promise<any>} the passkey */
export async function registerPasskey(name) {
  const began = await ask("POST", "/auth/passkey/register", {});
  if (began.status !== 200) throw new Error(began.body.message);
  const publicKey = /** @type {any} */ (PublicKeyCredential).parseCreationOptionsFromJSON(began.body.options.publicKey);
  const response = answered(await navigator.credentials.create({ publicKey }));
  const made = await ask("POST", "/auth/passkey/register/finish", { ceremony: began.body.ceremony, name, response });
  if (made.status !== 201) throw new Error(made.body.message);
  return made.body;
}

/** What the host reads of a credential. @param {any} credential */
function answered(credential) {
  const { id, response } = credential.toJSON();
  const { clientDataJSON, authenticatorData, publicKey, signature, userHandle } = response;
  return { id, response: { clientDataJSON, authenticatorData, publicKey, signature, userHandle } };
}
