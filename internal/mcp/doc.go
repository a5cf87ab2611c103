// Package mcp groups the packages of the Model Context Protocol.
//
// They are protocol (the engine that reads and answers messages in every
// released version), mcpversion, session, schema, rawjson (splicing JSON
// without decoding it), newline (messages as lines), seal (sealing state that
// clients carry) and client.
//
// rawjson, schema, seal and mcpversion are at the bottom and any package may
// import them. protocol is above dispatch, and only servers, app and tests
// import it. Begin with protocol.
package mcp
