//! Encrypted connections.

use super::address::{Address, Tls};
use super::wire::Failure;
use crate::server::stream::roots;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::fmt;
use std::sync::Arc;

/// The settings of TLS with a host.
pub(super) fn config(address: &Address, name: &str) -> Result<Arc<ClientConfig>, Failure> {
    let refuse = |cause: &dyn fmt::Display| Failure::Nonsense(format!("no TLS with {name}: {cause}"));
    let provider = Arc::new(ring::default_provider());
    // As Postgres does: an explicit root certificate implies verification.
    let level = match address.tls {
        Tls::Prefer | Tls::Require if address.roots.is_some() => Tls::VerifyCa,
        level => level,
    };
    let signer = match level {
        Tls::VerifyCa | Tls::VerifyFull => {
            let roots = Arc::new(roots(address.roots.as_deref()).map_err(|e| refuse(&e))?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            Some(verifier.map_err(|e| refuse(&e))?)
        }
        _ => None,
    };
    let verifier = Verifier { signer, is_any_name: level < Tls::VerifyFull, provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| refuse(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Verifies a server's certificate as far as the address requires it.
#[derive(Debug)]
struct Verifier {
    /// The verifier of the issuer; `None` if it is not verified.
    signer: Option<Arc<WebPkiServerVerifier>>,
    is_any_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(signer) = &self.signer else { return Ok(ServerCertVerified::assertion()) };
        match signer.verify_server_cert(certificate, others, name, ocsp, now) {
            // The name is checked last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.is_any_name => Ok(ServerCertVerified::assertion()),
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
