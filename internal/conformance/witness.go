package conformance

// Sighting is one message our server has sent.
type Sighting struct {
	Revision string // "" when the conversation has not settled on one
	Answers  string // the method of the request a response is for, if known
	Message  []byte // valid only during the call
}

// Witness sees the messages our server sends. Calls may be concurrent.
type Witness interface{ See(Sighting) }
