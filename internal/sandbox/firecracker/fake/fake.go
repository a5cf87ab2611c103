//go:build linux && (amd64 || arm64)

// Package fake stands in for Firecracker and its jailer in tests. It answers as
// the published interface says, refuses what that refuses, in the order it
// refuses it, and its machines run the agent that real ones run, in namespaces.
//
// What it cannot do is what only a machine can: keep memory. A machine that is
// made of its snapshots has a new agent, with the place of the old one.
package fake

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
)

// largestBody is how many bytes of a request are taken.
const largestBody = 51200

const (
	notAfter  = refusal("The requested operation is not supported after starting the microVM.")
	notBefore = refusal("The requested operation is not supported before starting the microVM.")
)

// VMM is one process's worth of state. It is an http.Handler, and safe for
// concurrent use.
type VMM struct {
	ID, Version string
	At          func(path string) string // where a path of the interface is on this host

	mu       sync.Mutex
	state    string                    // "", Running or Paused
	bound    bool                      // a resource was told of, so that no snapshot can be loaded
	said     map[string]map[string]any // by path, what was told last
	metadata any
	guest    *guest
	fatal    error // it cannot go on; the process is to end
}

// ServeHTTP answers one request.
func (v *VMM) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestBody))
	if err != nil || r.ContentLength < 0 {
		fault(w, http.StatusBadRequest, "the body is too long, or its length is not told")
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	answer, err := v.handle(r.Method, strings.Trim(r.URL.Path, "/"), body)
	switch {
	case err != nil:
		status := http.StatusBadRequest
		if strings.HasPrefix(err.Error(), "MMDS limit exceeded") {
			status = http.StatusRequestEntityTooLarge
		}
		fault(w, status, err.Error())
	case answer == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		json.NewEncoder(w).Encode(answer)
	}
}

func fault(w http.ResponseWriter, status int, text string) {
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"fault_message": text})
}

func (v *VMM) handle(method, path string, body []byte) (any, error) {
	first, id, _ := strings.Cut(path, "/")
	switch {
	case method == http.MethodGet && len(body) > 0:
		return nil, refusal("GET request cannot have a body.")
	case method == http.MethodGet:
		return v.tell(path)
	case len(body) == 0 && (method == http.MethodPut || method == http.MethodPatch):
		return nil, refusal("Empty " + method + " request.")
	case path == "mmds":
		return nil, v.meta(method, body)
	}
	rule := method + " " + first
	if first == "snapshot" || first == "mmds" {
		rule = method + " " + path
	}
	if _, known := bodies[rule]; !known {
		return nil, refusal(fmt.Sprintf("Invalid request method and/or path: %s %s.", method, path))
	}
	says, err := parse(rule, body)
	if err != nil {
		return nil, err
	}
	return nil, v.act(rule, id, says)
}

// tell answers a question.
func (v *VMM) tell(path string) (any, error) {
	switch path {
	case "":
		state := v.state
		if state == "" {
			state = "Not started"
		}
		return map[string]string{"app_name": "Firecracker", "id": v.ID, "state": state, "vmm_version": v.Version}, nil
	case "version":
		return map[string]string{"firecracker_version": v.Version}, nil
	case "machine-config":
		if m := v.said["machine-config"]; m != nil {
			return m, nil
		}
		return map[string]any{
			"vcpu_count":        1,
			"mem_size_mib":      128,
			"smt":               false,
			"track_dirty_pages": false,
			"huge_pages":        "None",
		}, nil
	case "mmds":
		if v.metadata == nil {
			return map[string]any{}, nil
		}
		return v.metadata, nil
	case "vm/config":
		return v.said, nil
	}
	return nil, refusal("Invalid request method and/or path: GET " + path + ".")
}

// act does what changes something, if it may be done now.
func (v *VMM) act(rule, id string, says map[string]any) error {
	method, path, _ := strings.Cut(rule, " ")
	switch action, _ := says["action_type"].(string); {
	case action == "InstanceStart":
		return v.before(func() error { return v.start() })
	case path == "actions":
		return v.after(func() error { return nil })
	case path == "vm":
		return v.after(func() error { return v.set(says["state"].(string)) })
	case path == "snapshot/create":
		return v.after(func() error { return v.saveSnapshot(says) })
	case path == "snapshot/load":
		return v.before(func() error { return v.load(says) })
	case path == "drives" || path == "network-interfaces":
		if err := named(id, says); err != nil {
			return err
		}
		if method == http.MethodPatch {
			return v.after(func() error { return v.update(path+"/"+id, says) })
		}
		path += "/" + id
	}
	return v.before(func() error { return v.configure(path, says) })
}

func (v *VMM) before(do func() error) error {
	if v.state != "" {
		return notAfter
	}
	return do()
}

func (v *VMM) after(do func() error) error {
	if v.state == "" {
		return notBefore
	}
	return do()
}

// named checks the id of a device in the path against the one in the body.
func named(id string, says map[string]any) error {
	if id == "" {
		return refusal("The ID cannot be empty.")
	}
	for _, r := range id {
		if r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return refusal("API Resource IDs can only contain alphanumeric characters and underscores.")
		}
	}
	for _, key := range []string{"drive_id", "iface_id"} {
		if in, there := says[key]; there && in != id {
			return refusal(fmt.Sprintf("The id from the path [%s] does not match the id from the body [%s]!", id, in))
		}
	}
	return nil
}

// configure keeps what was told of a resource, after a look whether it can be.
func (v *VMM) configure(path string, says map[string]any) error {
	if err := v.sound(path, says); err != nil {
		return err
	}
	if path != "logger" && path != "metrics" {
		v.bound = true
	}
	if v.said == nil {
		v.said = map[string]map[string]any{}
	}
	if v.said["metrics"] != nil && path == "metrics" {
		return refusal("Metrics error: the metrics system is initialized already")
	}
	v.said[path] = says
	return nil
}

func (v *VMM) sound(path string, says map[string]any) error {
	switch first, _, _ := strings.Cut(path, "/"); first {
	case "machine-config":
		if n := says["vcpu_count"]; n != nil && (n.(float64) < 1 || n.(float64) > 32) {
			return refusal(
				"Machine config error: The number of vCPUs must be greater than 0, less than 32 and must be 1 or an " +
					"even number if SMT is enabled.",
			)
		}
		if says["mem_size_mib"] == 0.0 {
			return refusal(
				"Machine config error: The memory size (MiB) is either 0, or not a multiple of the configured page size.",
			)
		}
	case "boot-source":
		if err := v.readable(says["kernel_image_path"]); err != nil {
			return refusal("Boot source error: The kernel file cannot be opened: " + err.Error())
		}
		if initrd := says["initrd_path"]; initrd != nil && v.readable(initrd) != nil {
			return refusal(
				"Boot source error: The initrd file cannot be opened due to invalid path or invalid permissions. " +
					v.readable(initrd).
						Error(),
			)
		}
	case "drives":
		if says["path_on_host"] == nil || v.readable(says["path_on_host"]) != nil {
			return refusal(fmt.Sprintf("Drive config error: Invalid block device path: %v", says["path_on_host"]))
		}
		for other, d := range v.said {
			if other != path && strings.HasPrefix(other, "drives/") && says["is_root_device"] == true &&
				d["is_root_device"] == true {
				return refusal("Drive config error: A root block device already exists!")
			}
		}
	}
	return nil
}

// readable opens a file for a moment.
func (v *VMM) readable(path any) error {
	f, err := os.Open(v.At(path.(string)))
	if err != nil {
		return errors.Unwrap(err)
	}
	return f.Close()
}

// update changes a device that is there.
func (v *VMM) update(path string, says map[string]any) error {
	if v.said[path] == nil {
		return refusal("Drive config error: Error during drive update (patch): the device is not there")
	}
	maps.Copy(v.said[path], says)
	return nil
}

// meta changes the metadata, which needs no machine.
func (v *VMM) meta(method string, body []byte) error {
	var data any
	switch err := json.Unmarshal(body, &data); {
	case err != nil:
		return malformed("%v", err)
	case method == http.MethodPatch && v.metadata == nil:
		return refusal("MMDS error: The MMDS data store is not initialized.")
	case method == http.MethodPatch:
		v.metadata = merged(v.metadata, data)
	case method == http.MethodPut:
		v.metadata = data
	default:
		return refusal("Invalid request method and/or path: " + method + " mmds.")
	}
	return nil
}

// merged is a JSON merge patch.
func merged(to, change any) any {
	with, ok := change.(map[string]any)
	if !ok {
		return change
	}
	all, ok := to.(map[string]any)
	if !ok {
		all = map[string]any{}
	}
	for k, c := range with {
		if c == nil {
			delete(all, k)
		} else {
			all[k] = merged(all[k], c)
		}
	}
	return all
}
